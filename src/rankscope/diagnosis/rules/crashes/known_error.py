"""One entry of the tables of known error texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Role = Literal["victim", "culprit", "neutral"]


@dataclass(frozen=True, slots=True)
class Message:
    pattern: re.Pattern[str]
    meaning: str
    role: Role
    cause: str | None = None
    fix: tuple[str, ...] = ()
    reference: str | None = None
    communication_only: bool = False
    """The words alone may come from any socket or file: they count only from torch.distributed, gloo or NCCL."""


def entry(
    pattern: str,
    meaning: str,
    role: Role,
    cause: str | None = None,
    *fix: str,
    reference: str | None = None,
    communication_only: bool = False,
) -> Message:
    return Message(re.compile(pattern), meaning, role, cause, fix, reference, communication_only)
