"""What was seen of a job: one plain value that can be saved, loaded and diagnosed again.

Nothing here decides anything. Times are seconds since the epoch. Stacks run from the innermost frame outwards.
What could not be had is named in `missing`, with the reason, instead of being left out silently.
"""

from __future__ import annotations

import msgspec

from rankscope.evidence.communicators import RasLook
from rankscope.evidence.device_work import DeviceWork

SCHEMA = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    function: str
    file: str
    line: int
    user: bool
    """In the user's own code: neither the standard library, nor an installed package, nor native code."""
    native: bool = False


class Thread(msgspec.Struct, frozen=True, gc=False):
    tid: int
    name: str
    main: bool
    frames: tuple[Frame, ...]
    owns_gil: bool = False
    active: bool = False


class StackSample(msgspec.Struct, frozen=True, gc=False):
    at: float
    threads: tuple[Thread, ...]
    source: str
    """`py-spy`, `py-spy-native` or `faulthandler`."""


class Syscall(msgspec.Struct, frozen=True, gc=False):
    """The system call the main thread stands in."""

    name: str
    fd: int | None = None
    target: str | None = None
    """What the descriptor is: a path, `pipe`, or `tcp 127.0.0.1:5000 -> 127.0.0.1:9000`."""


class FileLock(msgspec.Struct, frozen=True, gc=False):
    path: str
    kind: str
    """`flock` or `posix`."""
    holder: int | None
    """The pid that holds the lock this process waits for; None where the kernel does not tell."""


class ProcessSample(msgspec.Struct, frozen=True, gc=False):
    """One look at `/proc/PID`."""

    at: float
    state: str
    """The kernel's letter: R, S, D, T, t, Z."""
    cpu_s: float
    """Processor time of the process and all its living descendants."""
    read_bytes: int
    write_bytes: int
    """Bytes moved by read and write calls, cached or not, descendants included."""
    rss_bytes: int
    wchan: str | None = None
    syscall: Syscall | None = None
    waits_for_lock: FileLock | None = None
    threads: int = 0
    open_files: int | None = None
    open_files_limit: int | None = None
    sockets: tuple[str, ...] = ()
    sleeps: int | None = None
    """How often the main thread has gone to sleep so far: in one long wait once, in a loop of short ones again and
    again."""
    main_cpu_s: float | None = None
    """Processor time of the main thread alone, to the nanosecond; None where the kernel does not tell."""
    unsent_bytes: int = 0
    """Given to TCP connections, and not yet taken by their other ends."""
    network_bytes: int | None = None
    """Carried by living TCP connections so far, in both directions, descendants included; None where unknown."""


class ChildProcess(msgspec.Struct, frozen=True, gc=False):
    pid: int
    ppid: int
    kind: str
    """`dataloader-worker` or `child`."""
    command: str
    processes: tuple[ProcessSample, ...] = ()
    stacks: tuple[StackSample, ...] = ()
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call that the probe saw enter torch.distributed: collective, send, receive, wait, set-up."""

    index: int
    """Position in the rank's own sequence of calls, counted from 0 since its start."""
    op: str
    group: str
    """The process group's name; empty for calls that belong to none."""
    seq: int
    """How many collectives of that group this rank had entered, this one included; 0 for other calls."""
    thread: int
    depth: int
    """0 for a call from outside; more for one made by another recorded call."""
    entered_at: float
    left_at: float | None
    failed: bool
    step: int
    """Optimizer steps made before the call."""
    peer: int
    """The other rank of a send or receive, the root of a rooted collective; -1 without one."""
    numel: int
    """Elements of the first tensor; -1 where unknown."""
    dtype: str
    site: tuple[Frame, ...]
    """The user's frames above the call, innermost first."""
    note: str = ""
    """The awaited store key, and the like."""
    through: str = ""
    """The library's function that the innermost frame of `site` called, where that is not the call itself:
    `LightningModule.log`."""
    sends: tuple[int, ...] = ()
    """Of an all_to_all: the elements for each member of the group; empty where they are not known any more."""
    receives: tuple[int, ...] = ()
    """The same that it expects from each."""


class Collective(msgspec.Struct, frozen=True, gc=False):
    """An entry of torch's flight recorder."""

    record_id: int
    group: str
    seq: int
    p2p_seq: int
    op: str
    """Without the backend: `all_reduce`."""
    backend: str
    p2p: bool
    state: str
    retired: bool
    created_at: float
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    completed_at: float | None = None
    started_at: float | None = None
    """When torch found that the device had come to it; None where it does not time collectives."""
    timeout_ms: int | None = None
    thread: int = 0
    frames: tuple[Frame, ...] = ()


class Group(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str
    ranks: tuple[int, ...]


class Loader(msgspec.Struct, frozen=True, gc=False):
    """The data loader that a rank iterated last."""

    number: int
    """Loader iterations begun before this one in the same process."""
    batches: int
    exhausted: bool
    workers: int
    in_next: bool
    """A batch has been asked for and has not come."""
    changed_at: float
    site: tuple[Frame, ...] = ()
    length: int = -1
    """Batches that it has in all; -1 where it does not know."""


class LoaderRun(msgspec.Struct, frozen=True, gc=False):
    """An earlier pass over a data loader, which is over."""

    number: int
    batches: int
    length: int
    site: tuple[Frame, ...] = ()


class NonFinite(msgspec.Struct, frozen=True, gc=False):
    """A value of the rank that was not finite, where it mattered: at a loss that trained, or in a parameter."""

    kind: str
    """`input`, `loss`, `gradient` or `parameter`: the earliest place that was found."""
    step: int
    """Optimizer steps made before the one concerned."""
    at: float
    value: str
    """`nan`, `inf` or `-inf`."""
    tensors: tuple[str, ...]
    """The first names, of parameters or inputs."""
    count: int
    """How many tensors were concerned."""
    local: bool
    """Seen before any reduction between ranks."""
    detail: str = ""
    site: tuple[Frame, ...] = ()


class Phases(msgspec.Struct, frozen=True, gc=False):
    """Where a rank's time went since its second optimizer step; what is left over is other code."""

    since: float
    until: float
    first_step: int
    data_s: float
    forward_s: float
    backward_s: float
    waiting_s: float
    """In collectives and other waits for ranks, those inside the backward pass included."""
    saving_s: float


class Checksum(msgspec.Struct, frozen=True, gc=False):
    """Of a parameter that all ranks of a group must hold alike."""

    step: int
    value: float | None
    """None where it is not finite."""
    group: str
    name: str


class Stage(msgspec.Struct, frozen=True, gc=False):
    """A named part of the program's work that the rank has begun: a constructor, the first batch, a checkpoint."""

    index: int
    """Position among the stages of the rank, counted from 0 by their beginning."""
    label: str
    """What is or was being called: `WandbLogger.__init__`."""
    words: str
    """What is said once it is passed: `WandbLogger ready`."""
    kind: str
    """`logger`, `trainer`, `process group` and the like; empty for one that the program named itself."""
    note: str
    entered_at: float
    left_at: float | None
    number: int
    """Among those passed, counted from 1 in the order in which they were; 0 while the rank is in it, or it failed."""
    failed: bool
    announced: bool
    """May take long."""
    always: bool
    """A mark of memory, which is shown whenever stages are."""
    thread: int
    memory_before: int
    memory_after: int
    """Resident bytes; 0 where they were not read."""
    gpu_before: int
    gpu_after: int
    site: tuple[Frame, ...] = ()


class HeldTensors(msgspec.Struct, frozen=True, gc=False):
    """Tensors of one shape and type that a program still held."""

    count: int
    kind: str
    """`[4096, 1024] float32`."""
    bytes: int


class HeldMemory(msgspec.Struct, frozen=True, gc=False):
    """What a rank held on its GPU when its memory ran out, as the rank itself saw it."""

    allocated: int
    reserved: int
    in_python: int
    """Bytes of the tensors that Python can reach; autograd's graphs hold others."""
    tensors: tuple[HeldTensors, ...] = ()
    """The largest kinds first."""
    lines: tuple[tuple[str, int, int], ...] = ()
    """File, line and bytes of the user's lines that allocated most, where torch's history was switched on."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """What the rank itself wrote down on its shared page; readable after its death."""

    stage: str
    stage_since: float
    steps: int
    batches: int
    changed_at: float
    """When any of it changed last."""
    declared_world: int
    """The world size given to init_process_group; 0 before it."""
    calls_total: int
    calls: tuple[Call, ...]
    """The newest calls, oldest first. Older ones are gone when calls[0].index > 0."""
    groups: tuple[Group, ...]
    loader: Loader | None = None
    earlier_loaders: tuple[LoaderRun, ...] = ()
    """The newest before that one, oldest first."""
    exit_site: tuple[Frame, ...] = ()
    """Where sys.exit or os._exit was called last."""
    exit_note: str = ""
    finalizing: bool = False
    """The interpreter has left the program and runs its exit handlers."""
    signals: tuple[str, ...] = ()
    """Signals that a handler of the program received, as `SIGTERM`."""
    probe_errors: tuple[str, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    bad_losses: int = 0
    """Backward passes that began with a loss that was not finite."""
    phases: Phases | None = None
    checksums: tuple[Checksum, ...] = ()
    stages: tuple[Stage, ...] = ()
    """The newest stages, in the order in which they were begun."""
    stages_passed: int = 0
    set_up_over: bool = False
    """The first optimizer step has been made."""
    declared_step: int | None = None
    """What the program itself said with `rankscope.step(n)`."""
    program: tuple[str, ...] = ()
    """Folders of the program itself, where it was installed like a library: their files are the user's own."""
    held: HeldMemory | None = None
    """Once an exception for want of GPU memory has ended the program."""


class EarlierException(msgspec.Struct, frozen=True, gc=False):
    """One of the exceptions that led to another."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    led: str = "context"
    """How the next one came of it: `cause` (`raise ... from`), `context` (raised while this one was being handled),
    `suppressed` (the same, but with `from None`), `group` (the next is a group of which this is the first member)."""


class NamedPath(msgspec.Struct, frozen=True, gc=False):
    """A file or folder that an exception names, as it was when the evidence was taken."""

    path: str
    exists: bool
    changed_at: float | None = None


class RaisedException(msgspec.Struct, frozen=True, gc=False):
    type: str
    message: str
    at: float | None
    frames: tuple[Frame, ...]
    source: str
    """`hook`: uncaught; `thread`: it ended a thread; `exit`: being handled when the program ended itself; `pending`:
    being handled while the evidence was taken; `output`: read off a traceback; `error-file`: written by torch."""
    thread: str = "MainThread"
    chain: tuple[EarlierException, ...] = ()
    """What led to it, the first that was raised first; the exception itself is not among them."""
    paths: tuple[NamedPath, ...] = ()


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a log that may tell something."""

    text: str
    at: float | None
    """As the line or one before it says; None where no line carries a time."""
    order: int
    """Its place among all lines that were read, to tell what came first where no times are known."""
    count: int = 1
    """How many lines of the same wording there were."""


class Log(msgspec.Struct, frozen=True, gc=False):
    """What one rank wrote, or the lines of no known rank, as far as they matter."""

    files: tuple[str, ...]
    lines: int
    first_at: float | None
    last_at: float | None
    """When the last line was written: the last sign of life."""
    last_order: int
    notable: tuple[LogLine, ...]
    """Lines that speak of failures, waits and endings, in their order; the first of each wording."""
    tail: tuple[str, ...]
    """The last lines."""
    exceptions: tuple[RaisedException, ...] = ()
    """Tracebacks after which nothing much was written: with them the program ended, or this part of it."""
    written_at: float | None = None
    """When the newest of the files was written last; None where it came through a pipe."""


class Exit(msgspec.Struct, frozen=True, gc=False):
    code: int
    """As Python's subprocess says it: negative for a signal."""
    at: float
    by_launcher: bool
    """The launcher had sent a signal to it before it ended."""


class MemoryMark(msgspec.Struct, frozen=True, gc=False):
    """Resident bytes of a rank's own process at one moment."""

    at: float
    bytes: int


class RankEvidence(msgspec.Struct, frozen=True, gc=False):
    rank: int
    local_rank: int
    host: str
    pid: int
    started_at: float
    exit: Exit | None = None
    progress: Progress | None = None
    stacks: tuple[StackSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    children: tuple[ChildProcess, ...] = ()
    collectives: tuple[Collective, ...] = ()
    last_enqueued: dict[str, int] = msgspec.field(default_factory=dict)
    """Group name → the newest collective of the group that this rank has entered, as torch counts."""
    last_completed: dict[str, int] = msgspec.field(default_factory=dict)
    exceptions: tuple[RaisedException, ...] = ()
    groups: tuple[Group, ...] = ()
    """Process groups as torch's recorder names their members, where it does."""
    log: Log | None = None
    """What a log file holds of this rank."""
    crash_stack: tuple[Frame, ...] = ()
    """The Python stack at a fatal signal."""
    output_tail: tuple[str, ...] = ()
    error_tail: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    still_for_s: float | None = None
    """Seconds without any sign of life (processor time, I/O, moving stack, progress) up to the collection."""
    earlier_stacks: tuple[StackSample, ...] = ()
    earlier_processes: tuple[ProcessSample, ...] = ()
    """From the looks before this one, since the rank made progress last; of stacks the main thread alone."""
    memory: tuple[MemoryMark, ...] = ()
    """From its start to the last glance at it, evenly thinned out: known of ranks that the launcher watches."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class Gpu(msgspec.Struct, frozen=True, gc=False):
    index: int
    name: str
    utilization_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: int | None
    pids: tuple[int, ...] = ()
    work: DeviceWork | None = None
    """What it did while the evidence was taken; None where nobody asked, or the driver does not tell."""


class HostEvidence(msgspec.Struct, frozen=True, gc=False):
    host: str
    gpus: tuple[Gpu, ...] = ()
    kernel_log: tuple[str, ...] = ()
    """Lines since the job began that speak of memory, GPUs or killed processes."""
    oom_kills: int | None = None
    """Kills by the memory controller since the job began, in the job's cgroup."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    ras: tuple[RasLook, ...] = ()
    """What NCCL itself told of the job, at the beginning and at the end of the look."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class NodeEvidence(msgspec.Struct, frozen=True, gc=False):
    """A machine of a job that runs on several, as the node that diagnoses saw it."""

    host: str
    ranks: tuple[int, ...]
    state: str
    """`answered`: its evidence is here. `gone`: its launcher has ended without a word. `frozen`: the launcher's machine
    is there, the launcher does not act. `unreachable`: nothing answers from there. `silent`: it answers and sends no
    evidence. `cut-off`: this machine, whose own link is down."""
    pid: int | None = None
    """Of its launcher."""
    silent_for_s: float | None = None
    seen_from: str = ""
    """The host that found it so."""
    verified: bool = True
    """What it said was under the seal of the job's key: nobody else can have said it."""
    address: str = ""
    """By which the others reach it; empty where that was not kept."""


class Source(msgspec.Struct, frozen=True, gc=False):
    """The text of a function in which the user's code stood, for reading branches and loops."""

    file: str
    first_line: int
    text: str


class Evidence(msgspec.Struct, frozen=True, gc=False):
    schema: int
    collected_at: float
    started_at: float
    trigger: str
    """Why it was taken: `still`, `failure`, `interrupt`, `non-finite`, `end`, `request`, `attach`, or `files`: put
    together from what other tools had written."""
    world_size: int
    ranks: tuple[RankEvidence, ...]
    hosts: tuple[HostEvidence, ...] = ()
    sources: tuple[Source, ...] = ()
    nodes: tuple[NodeEvidence, ...] = ()
    """Of a job on several machines: every one of them."""
    speaker: bool = True
    """Taken by the node that holds the rendezvous store, or by the only one."""
    stall_after_s: float | None = None
    """Stillness after which a wait that is not proven endless is called a likely hang; None: never."""
    attempt: int = 0
    command: tuple[str, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    log: Log | None = None
    """Lines of logs that belong to no known rank: the launcher's, the kernel's."""
    refused: tuple[str, ...] = ()
    """Files that could not be used, each with the reason."""
    read_at: float | None = None
    """When files were read: up to then nothing more had been written to them."""
    judged: str = ""
    """The outcome in the run's own verdict, where its evidence could not be read again; empty without one."""
