"""What known error texts mean: who wrote them suffered (victim), began it (culprit), or neither (neutral)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankscope.diagnosis.rules.crashes.known_error import KnownError
from rankscope.diagnosis.rules.crashes.known_error_table import GENERAL, SPECIAL
from rankscope.diagnosis.rules.crashes.victim_errors import VICTIMS
from rankscope.diagnosis.verdict import Role

_TABLE = (*SPECIAL, *VICTIMS, *GENERAL)
"""The first that fits counts: the more special stand above the more general."""
KNOWN_ERRORS: dict[str, KnownError] = {known.name: known for known in _TABLE}

_COMMUNICATION = re.compile(
    r"gloo/|gloo::|\bc10d\b|NCCL|nccl[A-Z]|ProcessGroup|TCPStore|SocketImpl|store_based_barrier|monitoredBarrier"
    r"|torch\.distributed|\bDist(?:Network|Store|Backend)Error|The (?:client|server) socket has"
)


def speaks_of_communication(text: str) -> bool:
    """Whether a text comes from torch.distributed, gloo or NCCL and not from some other socket."""
    return _COMMUNICATION.search(text) is not None


def recognise(text: str, *, communication: bool = False) -> KnownError | None:
    """The first entry of the table that fits. `communication`: the text is known to come from torch.distributed."""
    from_torch = communication or speaks_of_communication(text)
    for known in _TABLE:
        if (from_torch or not known.communication_only) and known.fits(text):
            return known
    return None


def recognise_lines(lines: Iterable[str], roles: tuple[Role, ...] = ("victim", "culprit")) -> KnownError | None:
    """The first entry of the table that fits one of the lines and has one of the roles."""
    written = [line for line in lines if line.strip()]
    for known in _TABLE:
        if known.role not in roles:
            continue
        for line in written:
            if known.fits(line) and (not known.communication_only or speaks_of_communication(line)):
                return known
    return None


def neutral_errors(lines: Iterable[str]) -> tuple[KnownError, ...]:
    """Those among the lines that decide nothing, each once."""
    text = "\n".join(lines)
    return tuple(known for known in _TABLE if known.role == "neutral" and known.fits(text))
