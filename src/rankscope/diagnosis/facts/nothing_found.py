"""What was seen of a job in which nothing was found wrong: that it ended well, went on, stood still, or nothing."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.recorded import RecordedCall
from rankscope.diagnosis.verdict import Where

Phase = Literal[
    "init", "barrier", "forward", "batch", "save", "evaluate", "model", "data", "logger", "step", "stage", "unknown"
]
"""What the last lines of a log speak of."""


class AllWell(Fact, frozen=True):
    """Nothing is wrong with what was seen of a job that goes on."""

    world: int


class EndedWithZero(Fact, frozen=True):
    """Every rank ended with code 0."""

    world: int


class SeenToMove(Fact, frozen=True):
    """Ranks made progress while they were looked at."""

    ranks: tuple[int, ...]


class Looked(Fact, frozen=True):
    """Where a rank stood, and what several looks at it showed."""

    rank: int
    where: Where | None
    seen: tuple[Fact, ...]


class LoggedSteps(Fact, frozen=True):
    """The steps that the logs count last, up to `ago_s` before they were read. No ranks: the log names none."""

    ranks: tuple[int, ...]
    first: int
    last: int
    ago_s: float | None


class SaidDone(Fact, frozen=True):
    """The logs' own words for a good end. No ranks: the log names none."""

    ranks: tuple[int, ...]
    line: str


class NothingToRead(Fact, frozen=True):
    """Nothing that was given can be read as evidence."""

    refused: int


class NotUsed(Fact, frozen=True):
    """What could not be used, and why, as the reader of the files says it."""

    what: str


class CollectorNote(Fact, frozen=True):
    """What the collector, or the reader of files, says about a piece of evidence that it lacked or had to guess."""

    what: str
    why: str


class NoRankNamed(Fact, frozen=True):
    """Text in which no line names a rank, and none is known to signify anything."""

    lines: int
    files: tuple[str, ...]


class LogsEnd(Fact, frozen=True):
    """The logs end without a word of how the job ended. `ago_s`: how long before they were read."""

    ranks: tuple[int, ...]
    ago_s: float | None
    phase: Phase


class LastLinesDiffer(Fact, frozen=True):
    """What the last lines of ranks speak of is not the same for all of them."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]


class JudgedBefore(Fact, frozen=True):
    """A run had a verdict of its own, its evidence cannot be read any more, and what is left shows nothing wrong."""

    outcome: str


class NoEndTold(Fact, frozen=True):
    """No exception, no exit code and no known message is in the logs."""


class NoLogOf(Fact, frozen=True):
    """Ranks of which no line is in the logs."""

    ranks: tuple[int, ...]


class InUnfinished(Fact, frozen=True):
    """A rank was in a call when its dump was written."""

    rank: int
    call: RecordedCall


class OneLook(Fact, frozen=True):
    """Files show a single moment, in which nothing is wrong. `unfinished`: ranks that were in a collective."""

    unfinished: tuple[int, ...]


class StoodStill(Fact, frozen=True):
    """Ranks did not move while they were looked at, and nothing shows whom they keep waiting. `moving`: those that did;
    `busy`: those that used the processor without getting anywhere that could be seen."""

    ranks: tuple[int, ...]
    busy: tuple[int, ...]
    moving: tuple[int, ...]


class CouldNotRead(Fact, frozen=True):
    """Nothing of what ranks do could be read."""

    ranks: tuple[int, ...]
    why: str


class EndedMeanwhile(Fact, frozen=True):
    """Ranks ended while they were looked at; with which code only their parent knows."""

    ranks: tuple[int, ...]


class NoRankFound(Fact, frozen=True):
    """No rank of a job runs here, or none that may be looked into."""


class NoRank(Fact, frozen=True):
    """Nothing shows that processes are ranks of a job."""

    pids: tuple[int, ...]
    command: str


class LauncherAlone(Fact, frozen=True):
    """A launcher whose ranks have not started, or have not come to torch yet."""

    pid: int
    command: str


class NoRankVariable(Fact, frozen=True):
    """The environment of the processes names no rank, and no stack stands in torch.distributed."""

    pids: tuple[int, ...]


class RunsOn(Fact, frozen=True):
    """The machine that ranks run on."""

    ranks: tuple[int, ...]
    host: str


class MayStand(Fact, frozen=True):
    """What may keep a job that fell silent, by what its last lines speak of."""

    cause: str
    phase: Phase
