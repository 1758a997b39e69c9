"""What a rule hands back: a cause with its culprits and the facts that show it; and what becomes of it in the end."""

from __future__ import annotations

import msgspec

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import (
    Certainty,
    Outcome,
    ProcessKind,
    Role,
    SignOfLife,
    Straggler,
    Where,
)


class Suspect(msgspec.Struct, frozen=True):
    """Who caused it."""

    rank: int | None
    host: str | None
    pid: int | None
    process: ProcessKind
    where: Where | None
    doing: Fact
    stage: Fact | None = None


class Possibility(msgspec.Struct, frozen=True):
    """Another cause that is not ruled out."""

    cause: str
    certainty: Certainty
    because: Fact
    next: Advice | None = None
    """The step that would confirm this cause or rule it out."""


class Way(msgspec.Struct, frozen=True):
    """One of the ways that ranks took where they parted."""

    ranks: tuple[int, ...]
    where: Where | None
    call: Fact | None


class Finding(msgspec.Struct, frozen=True):
    outcome: Outcome
    cause: str
    """An id of the table in `causes.py`."""
    certainty: Certainty
    culprits: tuple[Suspect, ...]
    summary: Fact
    """What the headline says."""
    because: tuple[Fact, ...]
    """In the order that convinces."""
    fix: tuple[Advice, ...] = ()
    """Most useful first; where empty, what the table says of the cause."""
    alternatives: tuple[Possibility, ...] = ()
    references: tuple[str, ...] = ()
    """Public threads, beside those of the table."""
    victims: tuple[int, ...] | None = None
    """Where the rule knows better than the wait-for graph who suffered."""
    since: float | None = None
    """The last progress of the culprits, where the rule knows it better than their pages."""
    began: float | None = None
    """When the cause itself came about, however long the job went on after it."""
    next: tuple[Advice, ...] = ()
    """Steps that would confirm it, where it is not proven."""
    ways: tuple[Way, ...] = ()
    """Of a divergence: the ways that the ranks took."""


class Recognised(msgspec.Struct, frozen=True):
    """A line of a log that holds a known error."""

    rank: int | None
    text: str
    known: str
    """The error's name."""
    role: Role
    count: int
    at: float | None


class Ruling(msgspec.Struct, frozen=True):
    """The end of the diagnosis: what the verdict says, before anybody has put it into words."""

    outcome: Outcome
    cause: str | None
    certainty: Certainty
    summary: Fact
    culprits: tuple[Suspect, ...] = ()
    victims: tuple[int, ...] = ()
    victims_failed: bool = False
    """The victims ended because of it; otherwise they wait."""
    victims_told: bool = False
    """The summary speaks of the victims itself."""
    because: tuple[Fact, ...] = ()
    fix: tuple[Advice, ...] = ()
    alternatives: tuple[Possibility, ...] = ()
    detected_after_s: float | None = None
    world_size: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_codes: dict[int, int | None] = msgspec.field(default_factory=dict)
    notes: tuple[Fact, ...] = ()
    references: tuple[str, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    signs_of_life: tuple[SignOfLife, ...] = ()
    messages: tuple[Recognised, ...] = ()
    refused: tuple[str, ...] = ()
    next: tuple[Advice, ...] = ()
    stages: dict[int, Fact] = msgspec.field(default_factory=dict)
    ways: tuple[Way, ...] = ()
