"""What is known of a job as a whole where its ranks stand, and of the stages that they are in."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


class InCall(Fact, frozen=True):
    """Ranks wait in a call; `where` is None where its line was not recorded."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None


class AllWait(Fact, frozen=True):
    """Every rank waits, and nothing tells for whom."""

    calls: tuple[InCall, ...]


class NothingMoved(Fact, frozen=True):
    """No rank of the job has moved for `for_s` seconds."""

    for_s: float


class SoDo(Fact, frozen=True):
    """What was said of the first is true of other ranks too."""

    first: Fact
    others: tuple[int, ...]


class BeyondTimeLimit(Fact, frozen=True):
    """What the awaited rank did took longer than the collective's own time limit."""

    summary: Fact
    ranks: tuple[int, ...]
    """Whose limit passed."""


class TimedOut(Fact, frozen=True):
    """Ranks ended with a time-out in a collective."""

    ranks: tuple[int, ...]


class CameLate(Fact, frozen=True):
    """A rank came to a collective when others had already given it up, their time limit having passed."""

    rank: int
    op: str
    where: Where | None
    ranks: tuple[int, ...]
    """Who gave it up."""
    limit_s: float
    """How long they had waited."""
    late_s: float
    """How much later the rank came."""


class AwaitsUnseen(Fact, frozen=True):
    """Ranks wait for others, of which too little is known."""

    ranks: tuple[int, ...]
    awaited: tuple[int, ...]
    unseen: bool
    """Nothing at all was seen of them; otherwise not what they wait for themselves."""


class NoEvidence(Fact, frozen=True):
    """Ranks of which nothing at all is known."""

    ranks: tuple[int, ...]


class NoRecord(Fact, frozen=True):
    """Ranks stand in torch, and no record of their calls is there."""

    ranks: tuple[int, ...]


class ConnectionLost(Fact, frozen=True):
    """Every failure is a consequence of one that was not seen."""

    ranks: tuple[int, ...]


class EndedFirst(Fact, frozen=True):
    """The first of the ranks that ended because of something that was not seen."""

    rank: int
    message: str
    """The job's own words."""


class InStage(Fact, frozen=True):
    """The stage that a rank is in, by its number."""

    number: int
    label: str


class AfterStage(Fact, frozen=True):
    """The stage that a rank passed last. `passed` is what is said once it is passed."""

    number: int
    passed: str


class InsideStage(Fact, frozen=True):
    """Ranks stand in the call of a stage."""

    ranks: tuple[int, ...]
    label: str
    where: Where | None
