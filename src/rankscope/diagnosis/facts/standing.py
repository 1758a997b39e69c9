"""What a living rank does that others wait for: where it stands, what it waits for, and the signs of life it gave."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


class Moved(Fact, frozen=True):
    """What several looks at a process showed; None where a look could not tell."""

    samples: int
    apart_s: float
    """Between the first look and the last."""
    same_stack: bool | None
    cpu_share: float | None
    """Cores kept busy."""
    bytes_per_s: float | None


class Still(Fact, frozen=True):
    """No sign of life for so long."""

    for_s: float


class WorksBetweenSleeps(Fact, frozen=True):
    """The main thread woke again and again, and worked each time."""

    wakes: int
    over_s: float
    cpu_s: float
    """Processor time of the main thread alone, where the kernel tells it."""


class AwaitedBy(Fact, frozen=True):
    """Ranks that wait for the culprit."""

    ranks: tuple[int, ...]


class NotInitialised(Fact, frozen=True):
    """A rank has not reached init_process_group, others have."""

    rank: int
    joined: tuple[int, ...]


class NotSeen(Fact, frozen=True):
    """A piece of evidence that could not be had."""

    what: str
    why: str


class AtStage(Fact, frozen=True):
    """The stage and step that the rank noted last."""

    stage: str
    step: int


class Stuck(Fact, frozen=True):
    """A rank does not come out of a place."""

    rank: int
    where: Where | None
    doing: Fact


class Does(Fact, frozen=True):
    """A rank and what it does, where the place is part of what it does."""

    rank: int
    doing: Fact


class CannotRun(Fact, frozen=True):
    """The process of a rank cannot run at all."""

    rank: int
    where: Where | None
    state: Fact


class Frozen(Fact, frozen=True):
    """Why a process cannot run: stopped, or in the kernel's uninterruptible sleep."""

    stopped: bool
    wchan: str = ""


class KernelState(Fact, frozen=True):
    """The kernel's letter for a process, in how many looks."""

    pid: int
    state: str
    samples: int


class OnNetworkFileSystem(Fact, frozen=True):
    """The function of the kernel in which the process sleeps belongs to a network file system."""

    wchan: str


class NotRuledOut(Fact, frozen=True):
    """What else would look the same; `what` is a key of the words."""

    what: str


class HoldsInterpreterLock(Fact, frozen=True):
    """Native code, of a known function or not, keeps the interpreter lock."""

    function: str | None


class SeenHoldingLock(Fact, frozen=True):
    """The thread that holds the interpreter lock; None: the main thread. `samples` 1: and no other thread answered."""

    thread: str | None
    samples: int


class Sleeps(Fact, frozen=True):
    """Of a process: it sleeps, by its own choice."""

    where: Where | None


class InSyscall(Fact, frozen=True):
    """The system call in which the main thread waits, and what its descriptor is."""

    name: str
    target: str = ""


Wanted = Literal[
    "open", "open-pipe", "connect", "accept", "answer", "send", "store-answer", "store-send", "pipe-read", "pipe-write",
    "local-answer", "local-send", "typing", "read", "write", "input", "network-files", "files", "event-loop", "sleep",
]  # fmt: skip
"""What a system call waits for outside its process."""


class Outside(Fact, frozen=True):
    """A process waits for something outside itself."""

    wants: Wanted
    target: str = ""
    """Address, path, or name of the kernel's function."""
    call: str | None = None
    """The library's function that the user's line called."""


class Child(Fact, frozen=True):
    """A process that a rank started, and what it does as far as that is known."""

    pid: int
    command: str
    where: Where | None = None
    state: Fact | None = None


class AwaitsChildren(Fact, frozen=True):
    """The main thread waits for processes that it started."""

    children: tuple[Child, ...]
    idle: bool = False
    """All of them wait for work: what is waited for was lost."""


class AwaitsService(Fact, frozen=True):
    """A well-known call waits for the service behind it."""

    label: str
    addresses: tuple[str, ...] = ()


class StandsIn(Fact, frozen=True):
    """Where a thread stands, in names: library's function, native function, system call; each where known."""

    where: Where | None = None
    call: str | None = None
    innermost: str | None = None
    """The library's innermost function, where it is another than the one that was called."""
    native: str | None = None
    syscall: str | None = None


class Holder(Fact, frozen=True):
    """The process that holds a file's lock."""

    pid: int
    relation: Literal["same", "rank", "child", "outside"]
    rank: int | None = None
    where: Where | None = None
    command: str = ""
    ended: bool = False


class AwaitsFileLock(Fact, frozen=True):
    """Of a process: it waits for the lock of a file."""

    path: str
    lock: str
    """`flock`, `posix` or `fcntl`."""
    holder: Holder | None = None


class ListedAsWaiting(Fact, frozen=True):
    """The kernel's own list of locks names the process."""

    pid: int
    path: str
    lock: str


class AwaitsLockFile(Fact, frozen=True):
    """A loop looks at a lock file and sleeps, until somebody takes the file away."""

    path: str | None
    loop: str = ""
    """The library's function that does it."""


class Polls(Fact, frozen=True):
    """A loop of the user's own code that only tests and sleeps. `test` quotes the code."""

    where: Where | None
    test: str
    until: Literal["vanishes", "appears", "true"]
    """The tested path vanishes or appears; or the test is about something else."""


class AwaitsLock(Fact, frozen=True):
    """The main thread waits for a lock or a signal inside its own process."""

    of: Literal["lock", "handler", "queue-put", "queue-get", "future"] = "lock"
    suspect: ThreadDied | ThreadStands | None = None
    """The one thread that should release it, where one is known."""
    held_at: Where | None = None
    """Where the main thread took the same lock before, and holds it since: it waits for itself."""


class ThreadStands(Fact, frozen=True):
    """Where another thread of the rank stands."""

    thread: str
    where: Where | None
    call: str | None = None


class ThreadDied(Fact, frozen=True):
    """A thread that nobody hears of any more."""

    thread: str
    error: str
    where: Where | None


class AwaitsThread(Fact, frozen=True):
    """A thread of the rank does not finish, and the main thread waits for it."""

    thread: str
    call: str | None


class Joins(Fact, frozen=True):
    """The main thread waits at a place for another thread of its own."""

    where: Where | None
    thread: str


class AwaitsDatabase(Fact, frozen=True):
    """A statement waits until another connection lets go of the database's file."""

    statement: str
    """The user's line."""


class AwaitsQueue(Fact, frozen=True):
    """A queue between processes: full, or empty."""

    way: Literal["put", "get", "flush"]
    """`flush`: what was put is still to be written by the queue's own thread."""


class KeepsAlive(Fact, frozen=True):
    """What keeps the process of a program that is over: a thread, a child process, a queue's own thread, or an exit
    handler."""

    what: Literal["thread", "child", "feeder", "handler"]
    name: str = ""
    pid: int | None = None
    rank: int | None = None
    where: Where | None = None


class ProgramOver(Fact, frozen=True):
    """The main thread has left the program; what its process still waits for."""

    awaits: Literal["threads", "children", "queue", "handlers"]


class AwaitsGpu(Fact, frozen=True):
    """A rank waits for work on its GPU that does not finish."""

    rank: int
    where: Where | None


class XidReported(Fact, frozen=True):
    """A fault that the GPU's driver wrote into the kernel's log."""

    xid: int
    gpu: str


class GpuUse(Fact, frozen=True):
    """How busy a GPU is."""

    index: int
    name: str
    percent: int
    computes: bool | None = None
    """By its counters; a kernel that only waits keeps it at 100 % too. None where they do not tell."""


class GpuBehind(Fact, frozen=True):
    """The GPU of a rank has not begun a collective in which the GPUs of others stand."""

    rank: int
    op: str
    number: int
    for_s: float
    waiters: tuple[int, ...]


class DriverSilent(Fact, frozen=True):
    """The driver gives no answer about a GPU."""


class AwaitsBatch(Fact, frozen=True):
    """The main thread waits for its data loader."""

    where: Where | None


class WorkersStuck(Fact, frozen=True):
    """Data-loading workers that stand in their own code, and one of them as an example."""

    stuck: int
    total: int
    pid: int
    where: Where | None


class WorkerStuck(Fact, frozen=True):
    """A data-loading worker of a rank does not come out of a place."""

    rank: int
    where: Where | None
    doing: Fact


class NobodyPrepares(Fact, frozen=True):
    """No worker prepares the batch that is waited for: some are gone, or all wait for work."""

    declared: int
    alive: int


Phase = Literal[
    "compiling", "saving", "loading", "checkpoint", "data", "preparing", "importing", "writing", "gpu", "child", "",
]  # fmt: skip


class Works(Fact, frozen=True):
    """A rank at work, and what it is busy with."""

    where: Where | None
    phase: Phase = ""
    bytes_per_s: float = 0.0
    child: Child | None = None


class Loops(Fact, frozen=True):
    """A rank is busy in one loop of the user's code, and completes nothing."""

    where: Where | None
    function: str
    loop_line: int
    for_s: float
    """Since the rank noted anything."""


class LoopCannotEnd(Fact, frozen=True):
    """The condition of the loop, quoted; nothing in the loop changes it or leaves the loop."""

    test: str
    line: int


class BeyondRhythm(Fact, frozen=True):
    """Nothing noted for `for_s`, where one turn of the rank's own work never took longer than `longest_s`."""

    for_s: float
    longest_s: float
    every_turn: bool
    """No condition guards the place: it is passed in every turn."""
    samples: int
