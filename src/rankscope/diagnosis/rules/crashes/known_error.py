"""One entry of the tables of known error texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.advice import Advice

Role = Literal["victim", "culprit", "neutral"]


@dataclass(frozen=True, slots=True)
class KnownError:
    """An error text of which it is known what it signifies."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    role: Role
    """Who wrote it suffered (victim), began it (culprit), or neither (neutral)."""
    cause: str | None = None
    fix: tuple[Advice, ...] = ()
    reference: str | None = None
    communication_only: bool = False
    """The words alone may come from any socket or file: they count only from torch.distributed, gloo or NCCL."""
    waited: bool = False
    """Of a victim: its time ran out while it waited; otherwise its connection was lost."""


def entry(
    name: str,
    pattern: str,
    meaning: str,
    role: Role,
    cause: str | None = None,
    *fix: str,
    reference: str | None = None,
    communication_only: bool = False,
    waited: bool = False,
) -> KnownError:
    advice = tuple(map(Advice, fix))
    return KnownError(
        name, re.compile(pattern), meaning, role, cause, advice, reference, communication_only, waited=waited
    )
