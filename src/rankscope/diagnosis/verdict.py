"""The verdict: the contract that other programs rely on. Fields are added, never renamed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Outcome = Literal["ok", "hang", "crash", "nan", "corrupt", "slow", "interrupted", "unknown"]
Certainty = Literal["proven", "likely", "possible"]
Retry = Literal["yes", "elsewhere", "no", "unknown"]
"""Whether the same command may pass when it is started again."""
Role = Literal["victim", "culprit", "neutral"]
"""Of a known error: who wrote it suffered, began it, or neither."""
ProcessKind = Literal["rank", "dataloader-worker", "child", "launcher"]


class Where(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str


class Culprit(msgspec.Struct, frozen=True):
    rank: int | None
    host: str | None
    pid: int | None
    process: ProcessKind
    where: Where | None
    doing: str
    stage: str | None = None
    """The stage that its rank is in, or passed last: `in stage 9, WandbLogger.__init__`."""


class Alternative(msgspec.Struct, frozen=True):
    cause: str
    certainty: Certainty
    because: str
    next: str = ""
    """The step that would confirm this cause or rule it out."""


class SignOfLife(msgspec.Struct, frozen=True):
    """The last that a log holds of a rank."""

    rank: int | None
    at: float | None
    silent_s: float | None
    """Up to the last line of any rank."""
    line: str
    ago_s: float | None = None
    """Up to when the logs were read."""


class KnownMessage(msgspec.Struct, frozen=True):
    """A message in the logs of which it is known what it signifies."""

    rank: int | None
    text: str
    meaning: str
    role: Role
    count: int = 1
    at: float | None = None


class Straggler(msgspec.Struct, frozen=True):
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


class Side(msgspec.Struct, frozen=True):
    """Of two ways that ranks took, where nothing shows which of them was wrong."""

    ranks: tuple[int, ...]
    where: Where | None
    call: str
    """What they called there, in words; empty where they made no call."""


class Verdict(msgspec.Struct, frozen=True):
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
    exit_codes: dict[int, int | None] = msgspec.field(default_factory=dict)
    evidence: str = "evidence"
    notes: tuple[str, ...] = ()
    """What a person may want to know beside the verdict: a slow rank of a good run, an earlier attempt."""
    references: tuple[str, ...] = ()
    """Public threads about the same failure."""
    stragglers: tuple[Straggler, ...] = ()
    """Of any job, also of one that ended well: the ranks that the others waited for."""
    signs_of_life: tuple[SignOfLife, ...] = ()
    """From logs: the last line of each rank, the longest silent first."""
    messages: tuple[KnownMessage, ...] = ()
    """From logs: known messages, in their order."""
    refused: tuple[str, ...] = ()
    """Files that could not be used, each with the reason."""
    next: tuple[str, ...] = ()
    """Steps that would confirm the cause, where the evidence alone does not prove it; the most telling first."""
    stages: dict[int, str] = msgspec.field(default_factory=dict)
    """Rank → its stage, in the same words as a culprit's."""
    facts: tuple[dict[str, Any], ...] = ()
    """`because` as values: `kind` and the fields of the fact."""
    retry: Retry = "unknown"
    """What a scheduler should do with the same command."""
    sides: tuple[Side, ...] = ()
    """Of a divergence in which no side can be called wrong."""
    report: str = ""
    """The page about it, relative to the run's folder; empty where none was made."""
    language: str = "en"
    """Of `headline`, `because`, `fix` and all other sentences: `en` or `ko`."""
