"""Where the ranks of several machines are told to meet: an address that means another machine on each of them is none.

A name that leads to 127.0.0.1 or 127.0.1.1 is the commonest mistake of a first job on two machines: every machine looks
for rank 0 on itself, and all ranks stand in init_process_group. The variables prove it before a rank is started.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import msgspec

from rankscope.errors import UsageError
from rankscope.launch.nodes.seal import Seal, key_of_attempt
from rankscope.launch.nodes.words import HOST

_PATIENCE = timedelta(seconds=5)
_MOST_BYTES = 4096


class Word(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    host: str
    machine: str
    """The same for launchers that share one loopback interface."""
    itself: str
    """The address of this very machine that MASTER_ADDR leads to here; empty where it leads elsewhere."""


def check_meeting_place(
    store: Any,
    place: str,
    node: int,
    nodes: int,
    address: str,
    key: bytes | None = None,
    *,
    only_sealed: bool = False,
    run_id: str = "",
) -> None:
    """Raises UsageError where a node would look for rank 0 on itself though rank 0 runs on another machine.

    `key`, `only_sealed`, `run_id`: as for `open_exchange`. The words are sealed to job, attempt and place, and not to
    the moment: the nodes do not know each other yet.
    """
    own = Word(socket.gethostname(), _machine(), leads_to_itself(address))
    seal = Seal(key_of_attempt(key, run_id, place, nodes))
    store.set(f"{place}/{node}", seal.close(f"{place}/{node}", msgspec.json.encode(own)))
    if not own.itself:
        return
    places = [f"{place}/{other}" for other in range(nodes)]
    try:
        store.wait(places, _PATIENCE)
        said = [store.get(each) for each in places]
    except RuntimeError:
        return  # a node that says nothing proves nothing
    heard = [_understood(seal, *each, only_sealed=only_sealed) for each in zip(places, said, strict=True)]
    heard[node] = own  # whatever was made of it on the store
    words = [word for word in heard if word is not None]
    if len(words) < nodes:
        return
    lost = [word for word in words if word.itself and word.machine != words[0].machine]
    if lost:
        names = ", ".join(dict.fromkeys(word.host for word in lost))
        raise UsageError(
            f"MASTER_ADDR={address} leads to {lost[0].itself} on {names}, which is that machine itself, and rank 0 "
            f"runs on {words[0].host}: no rank was started. Give an address of {words[0].host} that all nodes reach: "
            "--local-addr ADDRESS there (static rendezvous: --master-addr ADDRESS everywhere), or take the name off "
            "127.0.0.1 and 127.0.1.1 in /etc/hosts"
        )


def _understood(seal: Seal, place: str, data: bytes, *, only_sealed: bool) -> Word | None:
    """None for what is no word of a node, or may not be one."""
    said = seal.open(place, data[:_MOST_BYTES])
    if only_sealed and not said.verified:
        return None
    try:
        word = msgspec.json.decode(said.content, type=Word)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return word if HOST.fullmatch(word.host) and _is_loopback(word.itself) else None


def _is_loopback(address: str) -> bool:
    """Or nothing."""
    try:
        return not address or (bool(HOST.fullmatch(address)) and ipaddress.ip_address(address).is_loopback)
    except ValueError:
        return False


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
