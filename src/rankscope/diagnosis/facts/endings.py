"""How ranks ended: exceptions, signals, exit codes, and who only failed as a consequence."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


class Raised(Fact, frozen=True):
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


class MadeLater(Fact, frozen=True):
    """A path that an error is about was made or written after the error."""

    path: str
    seconds: float


class YetToMake(Fact, frozen=True):
    """A path that an error is about is not there, and a rank is still in work that only it does, ahead of that line."""

    rank: int
    where: Where


class CameOutAs(Fact, frozen=True):
    """The exception that ended the rank was another one, which the first one led to."""

    first: str
    type: str
    text: str
    at: Where | None
    led: str
    """`cause`, `context`, `suppressed`, `group` or `quoted`."""


class RaisedWhileHandling(Fact, frozen=True):
    """The program had expected an exception, and failed while it took the other way."""

    type: str
    handled: str
    handled_at: Where | None


class RepeatsErrorOf(Fact, frozen=True):
    """Ranks that only pass on the error of another."""

    ranks: tuple[int, ...]
    of: int


class Means(Fact, frozen=True):
    """A known error text, by its name."""

    known: str
    last_words: bool = False
    """It stands in the last lines of a rank that died without an exception."""


class Remark(Fact, frozen=True):
    """A known text that decides nothing."""

    known: str


class SeenAsException(Fact, frozen=True):
    """The exception behind a special cause, for a reader who doubts that cause."""

    type: str
    at: Where | None


class PrintedTraceback(Fact, frozen=True):
    """An exception that a program had caught before it ended itself."""

    type: str
    at: Where | None


class EndedWith(Fact, frozen=True):
    """A rank ended with an exit code."""

    rank: int | None
    code: int
    call: str = ""
    """What ended it, as `sys.exit(3)`."""
    at: Where | None = None
    """Where the code was chosen."""
    chosen: bool = False
    """By the program itself, and not by an exception that nobody caught."""


class ChoseCode(Fact, frozen=True):
    """The end of a rank whose program chose the code, with the line to open first."""

    rank: int
    code: int
    at: Where | None
    because: Raised | None = None
    """The exception that it had caught."""


class RaisesThatCode(Fact, frozen=True):
    """`raise SystemExit(n)` of which there is only one in the program."""

    at: Where
    caught: str | None = None
    """What the `except` branch catches in which it stands; None where it stands in none, empty for a bare one."""


class LogEndsWithTraceback(Fact, frozen=True):
    """Nobody saw a rank end; the last that its log holds is a traceback."""

    rank: int


class HandledSignals(Fact, frozen=True):
    """Signals that a program had received and handled before the one that ended it."""

    signals: tuple[str, ...]


class EndedBySignal(Fact, frozen=True):
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


class InterpreterWasLeaving(Fact, frozen=True):
    """A rank's program had ended before, and Python was being taken down."""

    rank: int
    native_thread: bool = False
    """A thread of C++ wanted Python when it was gone."""


class MemoryKiller(Fact, frozen=True):
    """The kernel's log or the memory controller shows that the memory killer ended the process."""

    line: str = ""
    """Of the kernel's log."""
    kills: int = 0
    """By the memory controller's count."""


class NoMemoryKillerSeen(Fact, frozen=True):
    """Nothing shows that the memory killer sent the SIGKILL. `missing`: what could not be looked at."""

    missing: tuple[str, ...] = ()


class MemoryKillerEndsWorkersSo(Fact, frozen=True):
    """The memory killer ends data-loading workers in this way."""


class SignalMayComeFromElsewhere(Fact, frozen=True):
    """The signal may have been sent from outside the job."""


class MemoryLimit(Fact, frozen=True):
    """Each rank's address space was limited by the command itself."""

    limit: str


class WorkerDied(Fact, frozen=True):
    """A data-loading worker's process ended and took its rank with it."""

    rank: int
    pid: int
    signal: str = ""
    code: int | None = None
    at: Where | None = None


class FailedAlike(Fact, frozen=True):
    """Ranks that failed in the same way."""

    ranks: tuple[int, ...]
    how: str
    """The exception's type, the signal or the code."""
    at: Where | None


class AlsoFailedSo(Fact, frozen=True):
    """Ranks that failed in the same way as the culprit."""

    ranks: tuple[int, ...]


class FailedLater(Fact, frozen=True):
    """Ranks that failed by themselves, `after_s` after the first."""

    ranks: tuple[int, ...]
    after_s: float


class FailedAsConsequence(Fact, frozen=True):
    """Ranks that failed only because another had."""

    ranks: tuple[int, ...]


class Together(Fact, frozen=True):
    """Failures of several ranks at one moment, of which none is a consequence of another."""

    failures: tuple[Fact, ...]


class Besides(Fact, frozen=True):
    """A failure of another rank that is not the verdict."""

    failure: Fact
    earlier: bool


class ClocksMayDiffer(Fact, frozen=True):
    """Ranks on different hosts failed so close together that their clocks do not tell who was first."""

    hosts: tuple[str, ...]


class StillConnects(Fact, frozen=True):
    """A rank that tries the address that others have given up."""

    rank: int


class LeftEarly(Fact, frozen=True):
    """A rank that ended with code 0."""

    rank: int
    steps: int | None
    at: Where | None
    out_of_data: bool = False


class LeftTogether(Fact, frozen=True):
    """A rank ended too early, and others with it."""

    first: Fact
    others: tuple[int, ...]


class StillNeededBy(Fact, frozen=True):
    """Ranks that waited for a rank that had ended."""

    ranks: tuple[int, ...]


class LeftWhileNeeded(Fact, frozen=True):
    """Of a rank: it ended well while others still needed it."""


class NeverJoined(Fact, frozen=True):
    """A rank that did not call init_process_group."""

    joined: tuple[int, ...]


class LoaderEnded(Fact, frozen=True):
    """A rank's data loader came to its end earlier than that of another rank."""

    batches: int
    other: int
    other_batches: int


class GlooEnded(Fact, frozen=True):
    """gloo ended ranks that received a size that they had not asked for."""

    ranks: tuple[int, ...]


class WasAt(Fact, frozen=True):
    """Ranks whose call is not on record stood there."""

    ranks: tuple[int, ...]
    where: Where | None


class MetUnlike(Fact, frozen=True):
    """Ranks met in different collectives or sizes; `wrong` is empty where it is not known who took the wrong way."""

    wrong: tuple[Fact, ...]
    others: tuple[Fact, ...]
    died: GlooEnded


class WrongWayUnknown(Fact, frozen=True):
    """Ranks met in unlike calls, and nothing shows which of them was wrong."""
