"""Where the ranks of several machines are told to meet: an address that means another machine on each of them is none.

A name that leads to 127.0.0.1 or 127.0.1.1 is the commonest mistake of a first job on two machines: every machine looks
for rank 0 on itself, and all ranks stand in init_process_group. The variables prove it before a rank is started.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from rankscope.errors import UsageError

_PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Word:
    """What a node says of itself."""

    host: str
    machine: str
    """The same for launchers that share one loopback interface."""
    itself: str
    """The address of this very machine that MASTER_ADDR leads to here; empty where it leads elsewhere."""


def check_meeting_place(store: Any, key: str, node: int, nodes: int, address: str) -> None:
    """Raises UsageError where a node would look for rank 0 on itself though rank 0 runs on another machine."""
    own = Word(socket.gethostname(), _machine(), leads_to_itself(address))
    store.set(f"{key}/{node}", json.dumps(asdict(own)))
    if not own.itself:
        return
    keys = [f"{key}/{other}" for other in range(nodes)]
    try:
        store.wait(keys, _PATIENCE)
        words = [Word(**json.loads(store.get(each))) for each in keys]
    except (RuntimeError, ValueError, TypeError):
        return  # a node that says nothing proves nothing
    lost = [word for word in words if word.itself and word.machine != words[0].machine]
    if lost:
        names = ", ".join(dict.fromkeys(word.host for word in lost))
        raise UsageError(
            f"MASTER_ADDR={address} leads to {lost[0].itself} on {names}, which is that machine itself, and rank 0 "
            f"runs on {words[0].host}: no rank was started. Give an address of {words[0].host} that all nodes reach: "
            "--local-addr ADDRESS there (static rendezvous: --master-addr ADDRESS everywhere), or take the name off "
            "127.0.0.1 and 127.0.1.1 in /etc/hosts"
        )


def leads_to_itself(address: str) -> str:
    """The loopback address that the name leads to here; empty where it leads to another one, or nowhere."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    alone = bool(found) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
    return min(found) if alone else ""


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()
