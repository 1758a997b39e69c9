"""Takes all evidence of a job on this host, from processes that are stuck, at work or gone, without disturbing them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence import flight, gpus, kernel, pages, procfs, sources, stacks, tracebacks
from rankscope.evidence.comm_logs import comm_lines
from rankscope.evidence.communicators import RasLook
from rankscope.evidence.installed_program import with_program
from rankscope.evidence.model import (
    SCHEMA,
    ChildProcess,
    Evidence,
    Exit,
    Frame,
    HostEvidence,
    MemoryMark,
    ProcessSample,
    RaisedException,
    RankEvidence,
    StackSample,
)
from rankscope.evidence.named_paths import with_paths
from rankscope.evidence.nccl_looks import NcclLooks, begin_looks
from rankscope.evidence.unrecorded import unrecorded_calls
from rankscope.evidence.worker_socket import read_recorder
from rankscope.mask import mask_lines
from rankscope.probe.signals import STACK_SIGNAL

NEWEST_CALLS = 1500
MOST_CHILDREN = 24
_SPIN_SHARE = 0.3
"""Of one core; a wait for a GPU takes a whole one, or more with NCCL's own threads."""
_LOADER_WORKER_FILE = "/torch/utils/data/_utils/worker.py"


class KnownRank(msgspec.Struct, frozen=True):
    """A rank as its launcher knows it."""

    rank: int
    local_rank: int
    pid: int
    started_at: float
    exit: Exit | None
    output_tail: tuple[str, ...] = ()
    error_tail: tuple[str, ...] = ()
    still_for_s: float | None = None
    page: Path | None = None
    """Where it is known; otherwise it is looked for by the process."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Where it was read before: a process that has ended tells nothing."""
    memory: tuple[MemoryMark, ...] = ()


class JobFacts(msgspec.Struct, frozen=True):
    host: str
    world_size: int
    started_at: float
    attempt: int
    pages: Path | None
    """Folder of the probe's pages; None without the probe."""
    command: tuple[str, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    stall_after_s: float | None = None
    oom_kills_before: int | None = None
    comm_logs: Path | None = None
    """Where NCCL writes a file per process, if it was told to."""


class _Look(msgspec.Struct):
    """One rank while the evidence is being taken."""

    known: KnownRank
    pid: int
    page: Path | None
    stacks: list[StackSample] = msgspec.field(default_factory=list)
    processes: list[ProcessSample] = msgspec.field(default_factory=list)
    children: dict[int, ChildProcess] = msgspec.field(default_factory=dict)
    missing: dict[str, str] = msgspec.field(default_factory=dict)


def collect(
    facts: JobFacts,
    ranks: Callable[[], Sequence[KnownRank]],
    trigger: str,
    *,
    samples: int = 2,
    gap_s: float = 0.5,
    pause: bool = True,
    ask_nccl: bool = True,
) -> Evidence:
    """`ranks` is asked twice: at the start for whom to look at, and at the end for who has ended meanwhile.

    `pause`: processes may be paused for a moment where only native frames tell more, and sent the probe's signal. A
    rank that uses the processor on one and the same line is looked into in any case: it may only wait for its GPU.
    `ask_nccl`: NCCL and the GPUs' counters tell who waits, and may take seconds to answer.
    """
    looks = [_begin(facts, known) for known in ranks()]
    living = [look for look in looks if look.known.exit is None]
    with ThreadPoolExecutor(max_workers=10, thread_name_prefix="evidence") as pool:
        pids = [look.pid for look in living]
        nccl = begin_looks(pool, pids, facts.world_size, gap_s * (samples - 1)) if ask_nccl else None
        recorders = {look.known.rank: pool.submit(read_recorder, look.page) for look in living}
        for number in range(samples):
            if number:
                time.sleep(gap_s)
            _sample(living)
            if pause:
                _ask_for_stacks(living, pool, first=not number)
        answers = {look.known.rank: pool.submit(_ask_listener, look.page) for look in living}
        if nccl is not None:
            nccl.look_again()
        if pause:
            _look_closer(living)
        elif nccl is not None:
            _look_into([look for look in living if _spins(look)])
        recorded = {rank: future.result() for rank, future in recorders.items()}
        answered = {rank: future.result() for rank, future in answers.items()}
    newest = {known.rank: known for known in ranks()}
    finished = (_finish(facts, look, newest.get(look.known.rank, look.known), recorded, answered) for look in looks)
    seen = tuple(map(with_program, finished))
    return Evidence(
        schema=SCHEMA,
        collected_at=time.time(),
        started_at=facts.started_at,
        trigger=trigger,
        world_size=facts.world_size,
        ranks=seen,
        hosts=(_host(facts, nccl),),
        sources=sources.read_sources(_frames_of(seen)),
        stall_after_s=facts.stall_after_s,
        attempt=facts.attempt,
        command=facts.command,
        versions=facts.versions,
        missing=unrecorded_calls(seen),
    )


def find_page(folder: Path | None, attempt: int, pid: int) -> Path | None:
    """The page of a rank: of its own process, or of the Python process that its wrapper script started."""
    if folder is None:
        return None
    own = folder / f"{attempt}-{pid}.page"
    if own.exists():
        return own
    try:
        inner = [folder / f"{attempt}-{child}.page" for child in procfs.descendants(pid)]
    except ProcessLookupError:
        return None
    return next((page for page in inner if page.exists()), None)


def _begin(facts: JobFacts, known: KnownRank) -> _Look:
    page = known.page or find_page(facts.pages, facts.attempt, known.pid)
    pid = int(page.stem.rpartition("-")[2]) if page is not None else known.pid
    look = _Look(known=known, pid=pid, page=page)
    if facts.pages is None:
        look.missing["progress"] = "the probe was switched off"
    elif page is None:
        look.missing["progress"] = "the process has not started Python with the probe"
    return look


def _sample(looks: Sequence[_Look]) -> None:
    pids: list[int] = []
    for look in looks:
        try:
            look.processes.append(procfs.sample_process(look.pid))
            children = procfs.descendants(look.pid)[:MOST_CHILDREN]
        except (ProcessLookupError, OSError) as error:
            look.missing["process"] = f"{type(error).__name__}: {error}"
            continue
        pids.append(look.pid)
        for number in children:
            _sample_child(look, number)
        pids += [number for number in children if _runs_python(number)]
    found = stacks.sample_stacks(pids)
    for look in looks:
        stack = found.get(look.pid)
        if isinstance(stack, StackSample):
            look.stacks.append(stack)
        elif stack is not None:
            look.missing["stacks"] = stack
        for pid, child in list(look.children.items()):
            stack = found.get(pid)
            if isinstance(stack, StackSample):
                kind = "dataloader-worker" if _is_loader_worker(stack) else child.kind
                look.children[pid] = replace(child, kind=kind, stacks=(*child.stacks, stack))


def _sample_child(look: _Look, pid: int) -> None:
    try:
        sample = procfs.sample_process(pid)
        child = look.children.get(pid) or ChildProcess(
            pid=pid, ppid=procfs.parent(pid), kind="child", command=procfs.command_line(pid)
        )
    except (ProcessLookupError, OSError):
        return  # it ended meanwhile, which children do
    look.children[pid] = replace(child, processes=(*child.processes, sample))


def _runs_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def _is_loader_worker(stack: StackSample) -> bool:
    return any(_LOADER_WORKER_FILE in frame.file for thread in stack.threads for frame in thread.frames)


def _look_closer(looks: Sequence[_Look]) -> None:
    """Native frames where a thread holds the interpreter lock."""
    owners = [
        look.pid
        for look in looks
        if len(look.stacks) >= 2 and all(any(thread.owns_gil for thread in stack.threads) for stack in look.stacks)
    ]
    _look_into([look for look in looks if look.pid in owners])


def _ask_for_stacks(looks: Sequence[_Look], pool: Executor, *, first: bool) -> None:
    """By a signal, of ranks at which py-spy may not look: as often as it would, so that who stands is told from who
    moves. Whoever has not answered the first time is not asked again."""
    asked = [look for look in looks if _is_closed(look) and (first or look.stacks)]
    for look, sample in zip(asked, pool.map(_stacks_by_signal, asked), strict=True):
        if sample is not None:
            look.stacks.append(sample)


def _is_closed(look: _Look) -> bool:
    """py-spy was refused. Its stacks and those on a signal are not mixed: of one that stands they look different."""
    return look.page is not None and "stacks" in look.missing and all(s.source == "faulthandler" for s in look.stacks)


def _look_into(looks: Sequence[_Look]) -> None:
    """Native frames; each process is paused for a moment."""
    found = stacks.sample_stacks([look.pid for look in looks], native=True)
    for look in looks:
        stack = found[look.pid]
        if isinstance(stack, StackSample):
            look.stacks.append(stack)


def _spins(look: _Look) -> bool:
    """The last samples found the main thread on the same lines, and the process used the processor."""
    lines = {
        tuple((frame.file, frame.line) for frame in thread.frames)
        for stack in look.stacks[-2:]
        for thread in stack.threads
        if thread.main
    }
    if len(look.stacks) < 2 or len(lines) != 1 or len(look.processes) < 2:
        return False
    first, last = look.processes[0], look.processes[-1]
    return last.cpu_s - first.cpu_s >= _SPIN_SHARE * (last.at - first.at)


def _stacks_by_signal(look: _Look) -> StackSample | None:
    """Asks the rank's faulthandler. Without the handler the signal would end the process: the kernel is asked first."""
    assert look.page is not None
    file = look.page.with_suffix(".stacks")
    try:
        status = Path(f"/proc/{look.pid}/status").read_text(encoding="utf-8")
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if not caught >> (STACK_SIGNAL - 1) & 1:
            return None
        if not _has_open(look.pid, file):
            look.missing["stacks on a signal"] = "the program has closed the file that they would go to"
            return None
        before = file.stat().st_size
        os.kill(look.pid, STACK_SIGNAL)
        deadline = time.monotonic() + 1.0
        while file.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05)
        with file.open(encoding="utf-8", errors="replace") as dump:
            dump.seek(before)
            threads = stacks.parse_faulthandler(dump.read())
    except (OSError, StopIteration, ValueError) as error:
        look.missing["stacks on a signal"] = f"{type(error).__name__}: {error}"
        return None
    return StackSample(at=time.time(), threads=threads, source="faulthandler") if threads else None


def _has_open(pid: int, file: Path) -> bool:
    """Whether the process still has it: the handler knows a number only, and would write into whatever has it now."""
    wanted = file.stat()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return True  # nobody may look; the probe minds it by itself too
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False


def _ask_listener(page: Path | None) -> tuple[tuple[RaisedException, ...], StackSample] | str:
    path = page.with_suffix(".sock") if page is not None else None
    if path is None or not path.exists():
        return "the process has not joined a process group"
    try:
        return pages.ask_listener(path, at=time.time())
    except EvidenceError as error:
        return str(error)


def _finish(
    facts: JobFacts,
    look: _Look,
    known: KnownRank,
    recorded: dict[int, flight.FlightRecord | str],
    answered: dict[int, tuple[tuple[RaisedException, ...], StackSample] | str],
) -> RankEvidence:
    missing = dict(look.missing)
    content = None
    if look.page is not None:
        try:
            content = pages.read_page(look.page, newest_calls=NEWEST_CALLS)
        except EvidenceError as error:
            missing["progress"] = str(error)
    record = recorded.get(known.rank)
    if isinstance(record, str):
        missing["collectives"] = record
        record = None
    exceptions = list(content.exceptions) if content is not None else []
    stack_samples = list(look.stacks)
    answer = answered.get(known.rank)
    if isinstance(answer, str):
        missing["exceptions being handled"] = answer
    elif answer is not None:
        exceptions += answer[0]
        if not stack_samples:
            stack_samples.append(answer[1])
    printed = [tracebacks.masked(error) for error in _printed(known)]
    if known.exit is None:
        # Of a rank that lives on, only what ended one of its other threads is news; the main thread goes on.
        exceptions += [error for error in printed if error.thread != "MainThread"]
    elif known.exit.code != 0 and not any(error.source == "hook" for error in exceptions):
        exceptions += printed
    return RankEvidence(
        rank=known.rank,
        local_rank=known.local_rank,
        host=facts.host,
        pid=look.pid,
        started_at=known.started_at,
        exit=known.exit,
        progress=content.progress if content is not None else None,
        stacks=tuple(stack_samples),
        processes=tuple(look.processes),
        children=tuple(look.children.values()),
        collectives=record.collectives if record is not None else (),
        last_enqueued=record.last_enqueued if record is not None else {},
        last_completed=record.last_completed if record is not None else {},
        exceptions=with_paths(exceptions),
        crash_stack=_crash_stack(look.page, known),
        output_tail=mask_lines(known.output_tail),
        error_tail=(*mask_lines(known.error_tail), *comm_lines(facts.comm_logs, look.pid)),
        environment=read_environment(look.pid) or known.environment,
        still_for_s=known.still_for_s,
        memory=known.memory,
        missing=missing,
    )


def _printed(known: KnownRank) -> tuple[RaisedException, ...]:
    """Tracebacks that the rank wrote; a program may also print those that it caught to its ordinary output."""
    return tracebacks.find_tracebacks(known.error_tail) or tracebacks.find_tracebacks(known.output_tail)


def _crash_stack(page: Path | None, known: KnownRank) -> tuple[Frame, ...]:
    if known.exit is None or known.exit.code >= 0 or -known.exit.code in (signal.SIGKILL, signal.SIGTERM):
        return ()
    texts = ["\n".join(known.error_tail)]
    if page is not None:
        # Without the file the program had a fault handler of its own; its dump is in the output.
        with contextlib.suppress(FileNotFoundError):
            texts.insert(0, page.with_suffix(".fatal").read_text(encoding="utf-8", errors="replace"))
    return next((frames for text in texts if (frames := stacks.stack_of_fatal_error(text))), ())


def read_environment(pid: int) -> dict[str, str]:
    try:
        return procfs.environment(pid)
    except (ProcessLookupError, PermissionError, OSError):
        return {}


def _host(facts: JobFacts, nccl: NcclLooks | None) -> HostEvidence:
    missing: dict[str, str] = {}
    devices = gpus.read_gpus()
    if isinstance(devices, str):
        missing["gpus"] = devices
        devices = ()
    told: tuple[RasLook, ...] = ()
    if nccl is not None:
        work = nccl.work()
        devices = tuple(replace(gpu, work=work.get(gpu.index)) for gpu in devices)
        told, why = nccl.answers()
        if why:
            missing["nccl ras"] = why
    lines = kernel.kernel_lines(facts.started_at)
    if isinstance(lines, str):
        missing["kernel log"] = lines
        lines = ()
    kills = kernel.oom_kill_count()
    if kills is None:
        missing["memory events"] = "no cgroup memory controller is readable"
    elif facts.oom_kills_before is not None:
        kills -= facts.oom_kills_before
    total, available = kernel.memory()
    return HostEvidence(
        host=facts.host,
        gpus=devices,
        kernel_log=lines,
        oom_kills=kills,
        memory_total_bytes=total,
        memory_available_bytes=available,
        ras=told,
        missing=missing,
    )


def _frames_of(ranks: Sequence[RankEvidence]) -> list[Frame]:
    frames: list[Frame] = []
    for seen in ranks:
        for stack in seen.stacks[-1:]:
            frames += (frame for thread in stack.threads for frame in thread.frames)
        for error in seen.exceptions:
            frames += (*error.frames, *(frame for earlier in error.chain for frame in earlier.frames))
        for call in seen.progress.calls[-200:] if seen.progress is not None else ():
            frames += call.site
    return [frame for frame in frames if frame.user]
