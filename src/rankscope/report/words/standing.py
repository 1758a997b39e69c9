"""Words for what a living rank does that others wait for."""

from __future__ import annotations

from rankscope.diagnosis.facts.standing import (
    AtStage,
    AwaitedBy,
    AwaitsBatch,
    AwaitsChildren,
    AwaitsDatabase,
    AwaitsFileLock,
    AwaitsGpu,
    AwaitsLock,
    AwaitsLockFile,
    AwaitsQueue,
    AwaitsService,
    AwaitsThread,
    BeyondRhythm,
    CannotRun,
    Child,
    Does,
    DriverSilent,
    Frozen,
    GpuBehind,
    GpuUse,
    Holder,
    HoldsInterpreterLock,
    InSyscall,
    Joins,
    KeepsAlive,
    KernelState,
    ListedAsWaiting,
    LoopCannotEnd,
    Loops,
    Moved,
    NobodyPrepares,
    NotInitialised,
    NotRuledOut,
    NotSeen,
    OnNetworkFileSystem,
    Outside,
    Polls,
    ProgramOver,
    SeenHoldingLock,
    Sleeps,
    StandsIn,
    Still,
    Stuck,
    ThreadDied,
    ThreadStands,
    WorkersStuck,
    WorkerStuck,
    Works,
    WorksBetweenSleeps,
    XidReported,
)
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words import standing_advice as _advice  # noqa: F401
from rankscope.report.words.phrases import after_steps, place, ranks_text, verb

_SHOWN_CHILDREN = 3
_COUNTS = {2: "two", 3: "three", 4: "four"}

_NOT_RULED_OUT = {
    "native-call": "the native call may wait for something outside the job",
    "queue-lock": "a process that was killed may have held the queue's lock",
    "queue-reader": "the process that should read the queue may be stuck",
    "holder-alive": "the holder may be alive and at work",
    "polled-lock": "what it waits for may be held by another process",
    "file-system-lock": "the file system may not answer the request for the lock",
    "releasing-thread": "the thread that should release it may be blocked outside",
    "thread-outside": "the thread may wait for something outside",
    "loader-threads": "the batch may be held up in the loader's own threads",
    "long-kernel": "a long kernel looks the same until it ends",
    "not-the-gpu": "the call may wait for something else than the GPU",
    "endless-kernel": "a kernel that never ends keeps a GPU busy too",
    "endless-loop": "it is busy in one loop, far longer than any turn of its work took before",
    "long-work": "a loop that has much to do looks the same until it ends",
}
_OUTSIDE = {
    "connect": "connecting to {target}",
    "accept": "waiting for a connection to {target}",
    "answer": "waiting for an answer from {target}",
    "send": "sending to {target}",
    "store-answer": "waiting for an answer from the job's own store at {target}",
    "store-send": "sending to the job's own store at {target}",
    "pipe-read": "reading from a pipe that nobody writes to",
    "pipe-write": "writing to a pipe that nobody reads",
    "local-answer": "waiting for an answer from a local service ({target})",
    "local-send": "sending to a local service ({target})",
    "typing": "waiting for somebody to type",
    "read": "reading {target}, which does not return",
    "write": "writing {target}, which does not return",
    "input": "waiting for input on its descriptors",
    "network-files": "waiting for a network file system for {target}",
    "files": "waiting for the file system for {target}",
    "event-loop": "waiting in an event loop in which no task goes on",
    "open": "opening {target}, which does not return",
    "open-pipe": "opening {target}, a pipe whose other end nobody opens",
    "sleep": "sleeping",
}
_UNKNOWN_TARGETS = {"connect": "an address", "accept": "its own port", "open": "a file", "open-pipe": "a file"}
_LOCKS = {
    "lock": "waiting for a lock or a signal of another thread",
    "handler": "waiting for the lock of a log handler",
    "queue-put": "putting into a full queue that no thread empties",
    "queue-get": "waiting for an empty queue that no thread fills",
    "future": "waiting for a future that no thread completes",
}
_QUEUES = {
    "put": "putting into a queue between processes that is full: nobody takes out",
    "get": "waiting for a queue between processes that is empty: nobody puts in",
    "flush": "waiting until its queue is written out, which nobody reads",
}
_PHASES = {
    "compiling": "compiling",
    "saving": "saving a checkpoint",
    "loading": "loading a checkpoint",
    "checkpoint": "saving or loading a checkpoint",
    "data": "loading data",
    "preparing": "tokenising or preprocessing data",
    "importing": "importing",
    "gpu": "waiting for its GPU, which works,",
    "": "working",
}
_OVER = {
    "threads": "the main thread has left the program and waits for other threads",
    "children": "the program is over and waits for its child processes",
    "queue": "the program is over and waits until what it put into a queue is written",
    "handlers": "the program is over and the interpreter runs its exit handlers",
}
_XID = {
    13: "a kernel of the program accessed memory wrongly",
    31: "a kernel of the program touched memory that is not mapped",
    43: "a kernel of the program was stopped after an error",
    45: "the program's work was removed from the GPU, after another error or a kill",
    48: "the GPU's memory has an error that cannot be corrected",
    61: "the GPU's own controller stopped",
    62: "the GPU's own controller stopped",
    63: "a row of the GPU's memory was retired",
    64: "a row of the GPU's memory could not be retired",
    74: "an NVLink connection failed",
    79: "the GPU has fallen off the bus",
    94: "an error of the GPU's memory, contained to one program",
    95: "an error of the GPU's memory that spread",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}


@sentence.register
def _(fact: Moved) -> str:
    seen = []
    if fact.same_stack is not None:
        seen.append("same stack" if fact.same_stack else "the stack moved")
    if fact.cpu_share is not None:
        seen.append("no processor time" if fact.cpu_share < LIFE_CPU_SHARE else f"{fact.cpu_share:.0%} of one core")
    if fact.bytes_per_s is not None:
        quiet = fact.bytes_per_s < LIFE_IO_BYTES_PER_S
        seen.append("nothing read or written" if quiet else f"{fact.bytes_per_s / 1e6:.1f} MB/s read and written")
    return f"{_COUNTS.get(fact.samples, fact.samples)} samples {fact.apart_s:.1f} s apart: {', '.join(seen)}"


@sentence.register
def _(fact: Still) -> str:
    return f"not moved for {fact.for_s:.0f} s"


@sentence.register
def _(fact: WorksBetweenSleeps) -> str:
    times = "once" if fact.wakes == 1 else f"{fact.wakes} times"
    return f"woke {times} within {fact.over_s:.1f} s, and worked for {1000 * fact.cpu_s:.0f} ms"


@sentence.register
def _(fact: AwaitedBy) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} for it"


@sentence.register
def _(fact: NotInitialised) -> str:
    have = "has" if len(fact.joined) == 1 else "have"
    return f"rank {fact.rank} has not reached init_process_group; {ranks_text(fact.joined)} {have}"


@sentence.register
def _(fact: NotSeen) -> str:
    return f"{fact.what} could not be had: {fact.why}"


@sentence.register
def _(fact: AtStage) -> str:
    return f"its stage is {fact.stage!r}, {after_steps(fact.step)}"


@sentence.register
def _(fact: Stuck) -> str:
    joint = ":" if isinstance(fact.doing, HoldsInterpreterLock) else ","
    return f"rank {fact.rank} is stuck in {place(fact.where)}{joint} {doing(fact.doing)}"


@sentence.register
def _(fact: Does) -> str:
    return f"rank {fact.rank} is {doing(fact.doing)}"


@headline.register
def _(fact: Does) -> str:
    still = ", and does not move" if isinstance(fact.doing, StandsIn) else ""
    return sentence(fact) + still


@sentence.register
def _(fact: CannotRun) -> str:
    return f"the process of rank {fact.rank} is {doing(fact.state)}" + _in(fact.where)


@sentence.register
def _(fact: Frozen) -> str:
    if fact.stopped:
        return "stopped (SIGSTOP or a debugger)"
    return f"in uninterruptible sleep in {fact.wchan or 'the kernel'}"


@sentence.register
def _(fact: KernelState) -> str:
    told = f"the kernel says state {fact.state} for process {fact.pid}"
    return f"{told}: stopped" if fact.state != "D" else f"{told} in all {fact.samples} samples: uninterruptible sleep"


@sentence.register
def _(fact: OnNetworkFileSystem) -> str:
    return f"{fact.wchan} belongs to a network file system that may not answer"


@sentence.register
def _(fact: NotRuledOut) -> str:
    return _NOT_RULED_OUT[fact.what]


@sentence.register
def _(fact: HoldsInterpreterLock) -> str:
    return f"native code{f' ({fact.function})' if fact.function else ''} keeps the interpreter lock"


@sentence.register
def _(fact: SeenHoldingLock) -> str:
    which = "its main thread" if fact.thread is None else f"its thread {fact.thread}"
    if fact.samples > 1:
        return f"{which} holds the interpreter lock in {fact.samples} samples, on the same line"
    return f"{which} holds the interpreter lock, and no other Python thread of the rank answered"


@sentence.register
def _(fact: Sleeps) -> str:
    return f"sleeping in {place(fact.where)}"


@sentence.register
def _(fact: InSyscall) -> str:
    return f"waits in {fact.name}" + (f" on {fact.target}" if fact.target else "")


@sentence.register
def _(fact: Outside) -> str:
    text = _OUTSIDE[fact.wants].format(target=fact.target or _UNKNOWN_TARGETS.get(fact.wants, "something"))
    return f"{text} in {fact.call}" if fact.call is not None else text


@sentence.register
def _(fact: Child) -> str:
    state = f"which is {doing(fact.state)}" if fact.state is not None else ""
    if fact.state is None and fact.where is not None:
        state = f"which stands in {place(fact.where)}"
    return f"{fact.pid} ({fact.command[:60]})" + (f", {state}" if state else "")


@headline.register
def _(fact: Child) -> str:
    return f"child {sentence(fact)}"


@sentence.register
def _(fact: AwaitsChildren) -> str:
    return f"the main thread waits for {_names(fact)}"


@doing.register
def _(fact: AwaitsChildren) -> str:
    told = sentence(fact.children[0]) if len(fact.children) == 1 else _names(fact)
    if len(fact.children) > 1 and not fact.idle and fact.children[0].where is not None:
        told += f"; the first stands in {place(fact.children[0].where)}"
    idle = ": no worker has a task, and what is waited for was lost" if fact.idle else ""
    return f"waiting for child process{'es' if len(fact.children) > 1 else ''} {told}{idle}"


@sentence.register
def _(fact: AwaitsService) -> str:
    service = f", whose process talks to {', '.join(fact.addresses)}" if fact.addresses else ""
    return f"waiting in {fact.label} for its service{service}"


@sentence.register
def _(fact: StandsIn) -> str:
    return f"stands in {_standing(fact)}"


@doing.register
def _(fact: StandsIn) -> str:
    return f"standing in {_standing(fact)}" if _standing(fact) else "standing there without moving"


@sentence.register
def _(fact: Holder) -> str:
    if fact.relation == "same":
        return f"the same process ({fact.pid})"
    if fact.relation == "child":
        return f"a child of rank {fact.rank} (process {fact.pid}: {fact.command[:80]})"
    if fact.relation == "outside":
        return f"process {fact.pid} outside the job"
    state = ", which has ended" if fact.ended else f", which stands in {place(fact.where)}" if fact.where else ""
    return f"rank {fact.rank} (process {fact.pid})" + state


@sentence.register
def _(fact: AwaitsFileLock) -> str:
    return f"waiting for the lock of {fact.path}" + (f", held by {sentence(fact.holder)}" if fact.holder else "")


@sentence.register
def _(fact: ListedAsWaiting) -> str:
    return f"the kernel lists process {fact.pid} as waiting for the {fact.lock} lock of {fact.path}"


@sentence.register
def _(fact: AwaitsLockFile) -> str:
    loop = f" ({fact.loop})" if fact.loop else ""
    return f"the stack stands in a library's loop that looks at a lock file and sleeps{loop}"


@doing.register
def _(fact: AwaitsLockFile) -> str:
    return f"waiting for {fact.path or 'a lock file'} to be released"


@sentence.register
def _(fact: Polls) -> str:
    test = f" `{fact.test}`" if fact.test else " a condition"
    ends = {"vanishes": " until the file is gone", "appears": " until the file is there", "true": ""}[fact.until]
    return f"testing{test} again and again in {place(fact.where)}{ends}"


@sentence.register
def _(fact: AwaitsLock) -> str:
    if fact.held_at is not None:
        return f"the main thread waits for a lock that it has taken itself in {place(fact.held_at)} and still holds"
    return {"lock": "the main thread waits for a lock inside its own process"}.get(
        fact.of, f"the main thread is {_LOCKS[fact.of]}"
    )


@doing.register
def _(fact: AwaitsLock) -> str:
    if fact.held_at is not None:
        return f"waiting for a lock that it holds itself since {place(fact.held_at)}"
    if isinstance(fact.suspect, ThreadDied):
        return f"{_LOCKS[fact.of]}, while {sentence(fact.suspect)}"
    return _LOCKS[fact.of] + (f" ({sentence(fact.suspect)})" if fact.suspect is not None else "")


@sentence.register
def _(fact: ThreadStands) -> str:
    return f"thread {fact.thread} stands in {place(fact.where) if fact.where or not fact.call else fact.call}"


@sentence.register
def _(fact: ThreadDied) -> str:
    at = f" at {place(fact.where)}" if fact.where is not None else ""
    return f"thread {fact.thread} has ended with {fact.error}{at}"


@sentence.register
def _(fact: AwaitsThread) -> str:
    return f"its thread {fact.thread} does not finish" + (f": it stands in {fact.call}" if fact.call else "")


@sentence.register
def _(fact: Joins) -> str:
    return f"the main thread waits in {place(fact.where)} for its thread {fact.thread}"


@sentence.register
def _(fact: AwaitsDatabase) -> str:
    return "waiting until another connection lets go of the database" + (
        f": `{fact.statement}`" if fact.statement else ""
    )


@sentence.register
def _(fact: AwaitsQueue) -> str:
    return _QUEUES[fact.way]


@sentence.register
def _(fact: KeepsAlive) -> str:
    return f"{_keeper(fact)} keeps the finished program alive"


@headline.register
def _(fact: KeepsAlive) -> str:
    at = f" in {place(fact.where)}" if fact.where is not None else ""
    whose = "its " if fact.what == "child" else ""
    return f"rank {fact.rank} has finished, but {whose}{_keeper(fact)}{at} keeps it from exiting"


@sentence.register
def _(fact: ProgramOver) -> str:
    return _OVER[fact.awaits]


@sentence.register
def _(fact: AwaitsGpu) -> str:
    return f"rank {fact.rank} waits in {place(fact.where)} for its GPU, which does not finish"


@doing.register
def _(_: AwaitsGpu) -> str:
    return "waiting for its GPU"


@sentence.register
def _(fact: XidReported) -> str:
    return f"the driver reported Xid {fact.xid} of GPU {fact.gpu}: {_XID.get(fact.xid, 'a fault of the GPU')}"


@sentence.register
def _(fact: GpuUse) -> str:
    text = f"GPU {fact.index} ({fact.name}) is at {fact.percent} %"
    if fact.computes is None:
        return text
    return f"{text} and computes" if fact.computes else f"{text} and computes nothing: a kernel only waits there"


@sentence.register
def _(fact: GpuBehind) -> str:
    who = f"the GPUs of {ranks_text(fact.waiters)} wait in it" if fact.waiters else "no other has begun it either"
    return (
        f"rank {fact.rank} gave {fact.op} {fact.number} to its GPU {fact.for_s:.0f} s ago, which has not begun it: "
        f"a kernel before it runs on, while {who}"
    )


@sentence.register
def _(_: DriverSilent) -> str:
    return "the driver gives no answer about a GPU"


@sentence.register
def _(fact: AwaitsBatch) -> str:
    return f"the main thread waits for a batch in {place(fact.where)}"


@sentence.register
def _(fact: WorkersStuck) -> str:
    return f"{fact.stuck} of {fact.total} data-loading workers stuck: process {fact.pid}{_in(fact.where, joint=' in ')}"


@sentence.register
def _(fact: WorkerStuck) -> str:
    return f"a data-loading worker of rank {fact.rank} is stuck{_in(fact.where, joint=' in ')}, {doing(fact.doing)}"


@sentence.register
def _(fact: NobodyPrepares) -> str:
    if fact.alive < fact.declared:
        return f"{fact.declared - fact.alive} of {fact.declared} data-loading workers are gone"
    return f"all {fact.alive} data-loading workers wait for work"


@doing.register
def _(_: NobodyPrepares) -> str:
    return "waiting for a batch that no data-loading worker prepares"


@sentence.register
def _(fact: Works) -> str:
    if fact.child is not None:
        return f"waiting for its child process {sentence(fact.child)}, which works, in {place(fact.where)}"
    phase = f"writing {fact.bytes_per_s / 1e6:.0f} MB/s" if fact.phase == "writing" else _PHASES[fact.phase]
    return f"{phase} in {place(fact.where)}"


@sentence.register
def _(fact: Loops) -> str:
    return (
        f"busy in {place(fact.where)}, in the loop at line {fact.loop_line}, and has completed nothing for "
        f"{fact.for_s:.0f} s"
    )


@sentence.register
def _(fact: LoopCannotEnd) -> str:
    return f"nothing in the loop at line {fact.line} changes `{fact.test or 'True'}` or leaves it"


@sentence.register
def _(fact: BeyondRhythm) -> str:
    turn = " in a loop that is part of every turn" if fact.every_turn else ""
    return (
        f"{fact.samples} samples{turn}; nothing noted for {fact.for_s:.0f} s, where the longest turn so far took "
        f"{fact.longest_s:.2g} s"
    )


def _in(at: Where | None, joint: str = ", in ") -> str:
    return f"{joint}{place(at)}" if at is not None else ""


def _names(fact: AwaitsChildren) -> str:
    return ", ".join(f"{each.pid} ({each.command[:60]})" for each in fact.children[:_SHOWN_CHILDREN])


def _keeper(fact: KeepsAlive) -> str:
    if fact.what == "child":
        return f"child process {fact.pid} ({fact.name[:60]})"
    return {
        "thread": f"thread {fact.name}",
        "feeder": "a queue between processes that nobody reads",
        "handler": "an exit handler",
    }[fact.what]


def _standing(fact: StandsIn) -> str:
    """`push (train.py:88), in requests.post, innermost socket.readinto, native sem_wait, system call futex`."""
    parts = [place(fact.where)] if fact.where is not None else []
    parts += [f"in {fact.call}" if parts else fact.call] if fact.call else []
    deeper = {"innermost": fact.innermost, "native": fact.native, "system call": fact.syscall}
    names = [f"{kind} {name}" for kind, name in deeper.items() if name and fact.where is not None]
    return ", ".join([*parts, *names])
