"""The verdict: the contract that other programs rely on. Fields are added, never renamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "hang", "crash", "nan", "slow", "interrupted"]
Certainty = Literal["proven", "likely", "possible"]
ProcessKind = Literal["rank", "dataloader-worker", "child", "launcher"]


@dataclass(frozen=True, slots=True)
class Where:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Culprit:
    rank: int | None
    host: str | None
    pid: int | None
    process: ProcessKind
    where: Where | None
    doing: str


@dataclass(frozen=True, slots=True)
class Alternative:
    cause: str
    certainty: Certainty
    because: str


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others waited for again and again, or once for long."""

    rank: int
    phase: str
    """Where its additional time went: `data`, `forward/backward`, `save` or `other`."""
    lost_s: float
    """Seconds that each of the others spent waiting for it."""
    share: float
    """The same as a share of the time that was looked at."""
    factor: float
    """Its own working time over that of the others."""
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    schema: int
    outcome: Outcome
    cause: str | None
    certainty: Certainty
    culprits: tuple[Culprit, ...]
    victims: tuple[int, ...]
    headline: str
    because: tuple[str, ...]
    fix: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    detected_after_s: float | None = None
    world_size: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_codes: dict[int, int | None] = field(default_factory=dict)
    evidence: str = "evidence"
    notes: tuple[str, ...] = ()
    """What a person may want to know beside the verdict: a slow rank of a good run, an earlier attempt."""
    references: tuple[str, ...] = ()
    """Public threads about the same failure."""
    stragglers: tuple[Straggler, ...] = ()
    """Of any job, also of one that ended well: the ranks that the others waited for."""
