"""What is known of a job as a whole where its ranks stand, and of the stages that they are in."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


@dataclass(frozen=True, slots=True)
class InCall(Fact):
    """Ranks wait in a call; `where` is None where its line was not recorded."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class AllWait(Fact):
    """Every rank waits, and nothing tells for whom."""

    calls: tuple[InCall, ...]


@dataclass(frozen=True, slots=True)
class NothingMoved(Fact):
    """No rank of the job has moved for `for_s` seconds."""

    for_s: float


@dataclass(frozen=True, slots=True)
class SoDo(Fact):
    """What was said of the first is true of other ranks too."""

    first: Fact
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeyondTimeLimit(Fact):
    """What the awaited rank did took longer than the collective's own time limit."""

    summary: Fact
    ranks: tuple[int, ...]
    """Whose limit passed."""


@dataclass(frozen=True, slots=True)
class TimedOut(Fact):
    """Ranks ended with a time-out in a collective."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitsUnseen(Fact):
    """Ranks wait for others, of which too little is known."""

    ranks: tuple[int, ...]
    awaited: tuple[int, ...]
    unseen: bool
    """Nothing at all was seen of them; otherwise not what they wait for themselves."""


@dataclass(frozen=True, slots=True)
class NoEvidence(Fact):
    """Ranks of which nothing at all is known."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoRecord(Fact):
    """Ranks stand in torch, and no record of their calls is there."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConnectionLost(Fact):
    """Every failure is a consequence of one that was not seen."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndedFirst(Fact):
    """The first of the ranks that ended because of something that was not seen."""

    rank: int
    message: str
    """The job's own words."""


@dataclass(frozen=True, slots=True)
class InStage(Fact):
    """The stage that a rank is in, by its number."""

    number: int
    label: str


@dataclass(frozen=True, slots=True)
class AfterStage(Fact):
    """The stage that a rank passed last. `passed` is what is said once it is passed."""

    number: int
    passed: str


@dataclass(frozen=True, slots=True)
class InsideStage(Fact):
    """Ranks stand in the call of a stage."""

    ranks: tuple[int, ...]
    label: str
    where: Where | None
