"""What was seen of a job in which nothing was found wrong: that it ended well, went on, stood still, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.recorded import RecordedCall
from rankscope.diagnosis.verdict import Where

Phase = Literal[
    "init", "barrier", "forward", "batch", "save", "evaluate", "model", "data", "logger", "step", "stage", "unknown"
]
"""What the last lines of a log speak of."""


@dataclass(frozen=True, slots=True)
class AllWell(Fact):
    """Nothing is wrong with what was seen of a job that goes on."""

    world: int


@dataclass(frozen=True, slots=True)
class EndedWithZero(Fact):
    """Every rank ended with code 0."""

    world: int


@dataclass(frozen=True, slots=True)
class SeenToMove(Fact):
    """Ranks made progress while they were looked at."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Looked(Fact):
    """Where a rank stood, and what several looks at it showed."""

    rank: int
    where: Where | None
    seen: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class LoggedSteps(Fact):
    """The steps that the logs count last, up to `ago_s` before they were read. No ranks: the log names none."""

    ranks: tuple[int, ...]
    first: int
    last: int
    ago_s: float | None


@dataclass(frozen=True, slots=True)
class SaidDone(Fact):
    """The logs' own words for a good end. No ranks: the log names none."""

    ranks: tuple[int, ...]
    line: str


@dataclass(frozen=True, slots=True)
class NothingToRead(Fact):
    """Nothing that was given can be read as evidence."""

    refused: int


@dataclass(frozen=True, slots=True)
class NotUsed(Fact):
    """What could not be used, and why, as the reader of the files says it."""

    what: str


@dataclass(frozen=True, slots=True)
class CollectorNote(Fact):
    """What the collector, or the reader of files, says about a piece of evidence that it lacked or had to guess."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class NoRankNamed(Fact):
    """Text in which no line names a rank, and none is known to signify anything."""

    lines: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogsEnd(Fact):
    """The logs end without a word of how the job ended. `ago_s`: how long before they were read."""

    ranks: tuple[int, ...]
    ago_s: float | None
    phase: Phase


@dataclass(frozen=True, slots=True)
class LastLinesDiffer(Fact):
    """What the last lines of ranks speak of is not the same for all of them."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoEndTold(Fact):
    """No exception, no exit code and no known message is in the logs."""


@dataclass(frozen=True, slots=True)
class NoLogOf(Fact):
    """Ranks of which no line is in the logs."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InUnfinished(Fact):
    """A rank was in a call when its dump was written."""

    rank: int
    call: RecordedCall


@dataclass(frozen=True, slots=True)
class OneLook(Fact):
    """Files show a single moment, in which nothing is wrong. `unfinished`: ranks that were in a collective."""

    unfinished: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoodStill(Fact):
    """Ranks did not move while they were looked at, and nothing shows whom they keep waiting. `moving`: those that did;
    `busy`: those that used the processor without getting anywhere that could be seen."""

    ranks: tuple[int, ...]
    busy: tuple[int, ...]
    moving: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CouldNotRead(Fact):
    """Nothing of what ranks do could be read."""

    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class EndedMeanwhile(Fact):
    """Ranks ended while they were looked at; with which code only their parent knows."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoRankFound(Fact):
    """No rank of a job runs here, or none that may be looked into."""


@dataclass(frozen=True, slots=True)
class NoRank(Fact):
    """Nothing shows that processes are ranks of a job."""

    pids: tuple[int, ...]
    command: str


@dataclass(frozen=True, slots=True)
class LauncherAlone(Fact):
    """A launcher whose ranks have not started, or have not come to torch yet."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class NoRankVariable(Fact):
    """The environment of the processes names no rank, and no stack stands in torch.distributed."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunsOn(Fact):
    """The machine that ranks run on."""

    ranks: tuple[int, ...]
    host: str


@dataclass(frozen=True, slots=True)
class MayStand(Fact):
    """What may keep a job that fell silent, by what its last lines speak of."""

    cause: str
    phase: Phase
