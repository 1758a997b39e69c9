"""How ranks ended: exceptions, signals, exit codes, and who only failed as a consequence."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


@dataclass(frozen=True, slots=True)
class Raised(Fact):
    """An exception, the first of those that led to the end."""

    rank: int | None
    """None where a log does not name it."""
    type: str
    text: str
    """The first line of what it says."""
    at: Where | None
    fate: str = "uncaught"
    """`uncaught`; `pending`: being handled; `caught`: the program ended itself because of it; `thread`."""
    loader_worker: int | None = None
    """The data-loading worker that raised it and passed it on to its rank."""
    spawned: int | None = None
    """The spawned process that raised it, by the number that torch.multiprocessing gives it."""
    thread: str = ""
    """The thread that it ended, where it is not the main one."""


@dataclass(frozen=True, slots=True)
class MadeLater(Fact):
    """A path that an error is about was made or written after the error."""

    path: str
    seconds: float


@dataclass(frozen=True, slots=True)
class YetToMake(Fact):
    """A path that an error is about is not there, and a rank is still in work that only it does, ahead of that line."""

    rank: int
    where: Where


@dataclass(frozen=True, slots=True)
class CameOutAs(Fact):
    """The exception that ended the rank was another one, which the first one led to."""

    first: str
    type: str
    text: str
    at: Where | None
    led: str
    """`cause`, `context`, `suppressed`, `group` or `quoted`."""


@dataclass(frozen=True, slots=True)
class RaisedWhileHandling(Fact):
    """The program had expected an exception, and failed while it took the other way."""

    type: str
    handled: str
    handled_at: Where | None


@dataclass(frozen=True, slots=True)
class RepeatsErrorOf(Fact):
    """Ranks that only pass on the error of another."""

    ranks: tuple[int, ...]
    of: int


@dataclass(frozen=True, slots=True)
class Means(Fact):
    """A known error text, by its name."""

    known: str
    last_words: bool = False
    """It stands in the last lines of a rank that died without an exception."""


@dataclass(frozen=True, slots=True)
class Remark(Fact):
    """A known text that decides nothing."""

    known: str


@dataclass(frozen=True, slots=True)
class SeenAsException(Fact):
    """The exception behind a special cause, for a reader who doubts that cause."""

    type: str
    at: Where | None


@dataclass(frozen=True, slots=True)
class PrintedTraceback(Fact):
    """An exception that a program had caught before it ended itself."""

    type: str
    at: Where | None


@dataclass(frozen=True, slots=True)
class EndedWith(Fact):
    """A rank ended with an exit code."""

    rank: int | None
    code: int
    call: str = ""
    """What ended it, as `sys.exit(3)`."""
    at: Where | None = None
    """Where the code was chosen."""
    chosen: bool = False
    """By the program itself, and not by an exception that nobody caught."""


@dataclass(frozen=True, slots=True)
class ChoseCode(Fact):
    """The end of a rank whose program chose the code, with the line to open first."""

    rank: int
    code: int
    at: Where | None
    because: Raised | None = None
    """The exception that it had caught."""


@dataclass(frozen=True, slots=True)
class RaisesThatCode(Fact):
    """`raise SystemExit(n)` of which there is only one in the program."""

    at: Where
    caught: str | None = None
    """What the `except` branch catches in which it stands; None where it stands in none, empty for a bare one."""


@dataclass(frozen=True, slots=True)
class LogEndsWithTraceback(Fact):
    """Nobody saw a rank end; the last that its log holds is a traceback."""

    rank: int


@dataclass(frozen=True, slots=True)
class HandledSignals(Fact):
    """Signals that a program had received and handled before the one that ended it."""

    signals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndedBySignal(Fact):
    """A signal ended a rank."""

    rank: int
    pid: int
    signal: str
    at: Where | None = None
    cause: str = "killed"
    leaving: bool = False
    """Its program had ended before."""
    code: int | None = None
    """The exit code that tells of the signal, where a shell around the rank reported it."""


@dataclass(frozen=True, slots=True)
class InterpreterWasLeaving(Fact):
    """A rank's program had ended before, and Python was being taken down."""

    rank: int
    native_thread: bool = False
    """A thread of C++ wanted Python when it was gone."""


@dataclass(frozen=True, slots=True)
class MemoryKiller(Fact):
    """The kernel's log or the memory controller shows that the memory killer ended the process."""

    line: str = ""
    """Of the kernel's log."""
    kills: int = 0
    """By the memory controller's count."""


@dataclass(frozen=True, slots=True)
class NoMemoryKillerSeen(Fact):
    """Nothing shows that the memory killer sent the SIGKILL. `missing`: what could not be looked at."""

    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryKillerEndsWorkersSo(Fact):
    """The memory killer ends data-loading workers in this way."""


@dataclass(frozen=True, slots=True)
class SignalMayComeFromElsewhere(Fact):
    """The signal may have been sent from outside the job."""


@dataclass(frozen=True, slots=True)
class MemoryLimit(Fact):
    """Each rank's address space was limited by the command itself."""

    limit: str


@dataclass(frozen=True, slots=True)
class WorkerDied(Fact):
    """A data-loading worker's process ended and took its rank with it."""

    rank: int
    pid: int
    signal: str = ""
    code: int | None = None
    at: Where | None = None


@dataclass(frozen=True, slots=True)
class FailedAlike(Fact):
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    how: str
    """The exception's type, the signal or the code."""
    at: Where | None


@dataclass(frozen=True, slots=True)
class AlsoFailedSo(Fact):
    """Ranks that failed in the same way as the culprit."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailedLater(Fact):
    """Ranks that failed by themselves, `after_s` after the first."""

    ranks: tuple[int, ...]
    after_s: float


@dataclass(frozen=True, slots=True)
class FailedAsConsequence(Fact):
    """Ranks that failed only because another had."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Together(Fact):
    """Failures of several ranks at one moment, of which none is a consequence of another."""

    failures: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Besides(Fact):
    """A failure of another rank that is not the verdict."""

    failure: Fact
    earlier: bool


@dataclass(frozen=True, slots=True)
class ClocksMayDiffer(Fact):
    """Ranks on different hosts failed so close together that their clocks do not tell who was first."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StillConnects(Fact):
    """A rank that tries the address that others have given up."""

    rank: int


@dataclass(frozen=True, slots=True)
class LeftEarly(Fact):
    """A rank that ended with code 0."""

    rank: int
    steps: int | None
    at: Where | None
    out_of_data: bool = False


@dataclass(frozen=True, slots=True)
class LeftTogether(Fact):
    """A rank ended too early, and others with it."""

    first: Fact
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StillNeededBy(Fact):
    """Ranks that waited for a rank that had ended."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeftWhileNeeded(Fact):
    """Of a rank: it ended well while others still needed it."""


@dataclass(frozen=True, slots=True)
class NeverJoined(Fact):
    """A rank that did not call init_process_group."""

    joined: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoaderEnded(Fact):
    """A rank's data loader came to its end earlier than that of another rank."""

    batches: int
    other: int
    other_batches: int


@dataclass(frozen=True, slots=True)
class GlooEnded(Fact):
    """gloo ended ranks that received a size that they had not asked for."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WasAt(Fact):
    """Ranks whose call is not on record stood there."""

    ranks: tuple[int, ...]
    where: Where | None


@dataclass(frozen=True, slots=True)
class MetUnlike(Fact):
    """Ranks met in different collectives or sizes; `wrong` is empty where it is not known who took the wrong way."""

    wrong: tuple[Fact, ...]
    others: tuple[Fact, ...]
    died: GlooEnded


@dataclass(frozen=True, slots=True)
class WrongWayUnknown(Fact):
    """Ranks met in unlike calls, and nothing shows which of them was wrong."""
