"""What known error texts mean: who wrote them suffered (victim), began it (culprit), or neither (neutral)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankscope.diagnosis.rules.crashes.known_error import Message, Role
from rankscope.diagnosis.rules.crashes.known_error_table import GENERAL, SPECIAL
from rankscope.diagnosis.rules.crashes.victim_errors import VICTIMS

_TABLE = (*SPECIAL, *VICTIMS, *GENERAL)
"""The first that fits counts: the more special stand above the more general."""

_COMMUNICATION = re.compile(
    r"gloo/|gloo::|\bc10d\b|NCCL|nccl[A-Z]|ProcessGroup|TCPStore|SocketImpl|store_based_barrier|monitoredBarrier"
    r"|torch\.distributed|\bDist(?:Network|Store|Backend)Error|The (?:client|server) socket has"
)
_MISSING = re.compile(r"Rank (\d+) failed to pass monitoredBarrier|Ranks ([\d, ]+) failed to pass monitoredBarrier")
_CLOSED_BY = re.compile(r"Connection closed by localRank (\d+)")


def speaks_of_communication(text: str) -> bool:
    """Whether a text comes from torch.distributed, gloo or NCCL and not from some other socket."""
    return _COMMUNICATION.search(text) is not None


def recognise(text: str, *, communication: bool = False) -> Message | None:
    """The first entry of the table that fits. `communication`: the text is known to come from torch.distributed."""
    from_torch = communication or speaks_of_communication(text)
    for message in _TABLE:
        if (from_torch or not message.communication_only) and message.pattern.search(text):
            return message
    return None


def recognise_lines(lines: Iterable[str], roles: tuple[Role, ...] = ("victim", "culprit")) -> Message | None:
    """The first entry of the table that fits one of the lines and has one of the roles."""
    known = [line for line in lines if line.strip()]
    for message in _TABLE:
        if message.role not in roles:
            continue
        for line in known:
            if message.pattern.search(line) and (not message.communication_only or speaks_of_communication(line)):
                return message
    return None


def remarks(lines: Iterable[str]) -> tuple[str, ...]:
    """What the neutral messages among the lines mean, each once."""
    text = "\n".join(lines)
    return tuple(message.meaning for message in _TABLE if message.role == "neutral" and message.pattern.search(text))


def accused_ranks(lines: Iterable[str]) -> tuple[int, ...]:
    """Ranks that a monitored barrier names as missing."""
    found: set[int] = set()
    for match in _MISSING.finditer("\n".join(lines)):
        found.update(int(number) for number in re.findall(r"\d+", match[1] or match[2]))
    return tuple(sorted(found))


def closed_by_local_rank(lines: Iterable[str]) -> int | None:
    """The local rank whose death NCCL's service thread noticed first."""
    match = _CLOSED_BY.search("\n".join(lines))
    return int(match[1]) if match else None
