"""Small pieces of evidence for tests of the diagnosis: name what matters, the rest has plain defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankscope.evidence.model import (
    Call,
    ChildProcess,
    Evidence,
    Exit,
    Frame,
    HostEvidence,
    Loader,
    ProcessSample,
    Progress,
    RaisedException,
    RankEvidence,
    Source,
    StackSample,
    Syscall,
    Thread,
)

NOW = 1_000.0
USER = "/home/user/project/"
STDLIB = "/usr/lib/python3.12/"
SITE = "/home/user/venv/lib/python3.12/site-packages/"
PID = 4000


def frame(file: str, line: int, function: str) -> Frame:
    """A frame of the user's project; of the library for a path under STDLIB, SITE or `<frozen ...>`."""
    library = file.startswith((STDLIB, SITE, "<"))
    return Frame(function, file if library or file.startswith("/") else USER + file, line, user=not library)


def lib(path: str, function: str, line: int = 10) -> Frame:
    """`lib("torch/utils/data/dataloader.py", "_next_data")`, or of the standard library without a package's folder."""
    standard = path.split("/", maxsplit=1)[0] in {
        *("threading.py", "subprocess.py", "socket.py", "selectors.py", "os.py", "pathlib.py", "queue.py"),
        *("multiprocessing", "concurrent", "urllib", "http", "logging", "asyncio"),
    }
    return frame((STDLIB if standard else SITE) + path, line, function)


def native(function: str) -> Frame:
    return Frame(function, "", 0, user=False, native=True)


def thread(
    frames: Iterable[Frame], *, tid: int = PID, main: bool = True, name: str = "MainThread", gil: bool = False
) -> Thread:
    return Thread(tid, name, main, tuple(frames), owns_gil=gil)


def stack(file: str, line: int, function: str, lib: Iterable[Frame] = (), **options: Any) -> Thread:
    """A thread in the user's function, with the library's frames beneath it, innermost first."""
    return thread((*lib, frame(file, line, function), frame("train.py", 200, "main")), **options)


def samples(*threads: Thread, times: int = 2, source: str = "py-spy") -> tuple[StackSample, ...]:
    """The same threads seen several times, half a second apart."""
    return tuple(StackSample(NOW - 0.5 * (times - 1 - n), threads, source) for n in range(times))


def process(
    syscall: Syscall | str | None = None,
    *,
    cpu: float = 0.0,
    io: int = 0,
    sleeps: int = 0,
    main_cpu: float | None = None,
    **fields: Any,
) -> tuple[ProcessSample, ...]:
    """Two looks at a process, half a second apart, with that much processor time, that many bytes and that many
    sleeps of the main thread in between; `main_cpu`: processor time of the main thread, where the kernel tells it."""
    call = Syscall(syscall) if isinstance(syscall, str) else syscall
    values = {"state": "S", "rss_bytes": 1 << 28, "write_bytes": 0, "syscall": call, **fields}
    return (
        ProcessSample(
            at=NOW - 0.5, cpu_s=5.0, read_bytes=100, sleeps=30, main_cpu_s=None if main_cpu is None else 2.0, **values
        ),
        ProcessSample(
            at=NOW,
            cpu_s=5.0 + cpu,
            read_bytes=100 + io,
            sleeps=30 + sleeps,
            main_cpu_s=None if main_cpu is None else 2.0 + main_cpu,
            **values,
        ),
    )


def worker(pid: int, *frames: Frame, processes: tuple[ProcessSample, ...] | None = None) -> ChildProcess:
    """A forked data-loading worker: its own frames, the worker's loop, and the parent's frames beneath."""
    below = (lib("torch/utils/data/_utils/worker.py", "_worker_loop"), lib("multiprocessing/process.py", "_bootstrap"))
    full = (*frames, *below, frame("train.py", 61, "train"))
    looks = process() if processes is None else processes
    return ChildProcess(pid, PID, "dataloader-worker", "python train.py", looks, samples(thread(full, tid=pid)))


def idle_worker(pid: int) -> ChildProcess:
    return worker(
        pid, lib("selectors.py", "select"), lib("multiprocessing/queues.py", "get"), processes=process("poll")
    )


def child(pid: int, command: str, *frames: Frame, processes: tuple[ProcessSample, ...] | None = None) -> ChildProcess:
    looks = process() if processes is None else processes
    return ChildProcess(pid, PID, "child", command, looks, samples(thread(frames, tid=pid)) if frames else ())


def call(index: int, op: str, site: Frame, *, seq: int = 0, left: bool = True, step: int = 0) -> Call:
    ended = NOW - 10 + index if left else None
    return Call(index, op, "default_pg", seq, PID, 0, NOW - 10 + index, ended, False, step, -1, 4, "float32", (site,))


def loader(
    batches: int, *, number: int = 0, exhausted: bool = False, workers: int = 0, in_next: bool = False
) -> Loader:
    return Loader(number, batches, exhausted, workers, in_next, NOW)


def progress(*calls: Call, world: int = 4, steps: int = 0, **fields: Any) -> Progress:
    values: dict[str, Any] = {"stage": "training", "stage_since": NOW - 60, "batches": steps, "changed_at": NOW - 12}
    values |= {"calls_total": len(calls), "groups": (), **fields}
    return Progress(steps=steps, declared_world=world, calls=calls, **values)


def ended(code: int, at: float = NOW, *, by_launcher: bool = False) -> Exit:
    return Exit(code, at, by_launcher)


def raised(
    kind: str, message: str = "", *frames: Frame, at: float | None = NOW - 1, source: str = "hook"
) -> RaisedException:
    return RaisedException(kind, message, at, frames, source)


def rank(number: int, *threads: Thread, **fields: Any) -> RankEvidence:
    """A rank whose threads were seen twice; `exceptions=raised(...)` and the like may be given without a tuple."""
    for name in ("exceptions", "children"):
        if name in fields and not isinstance(fields[name], tuple):
            fields[name] = (fields[name],)
    if threads:
        fields.setdefault("stacks", samples(*threads))
    return RankEvidence(
        number, number, fields.pop("host", "node-1"), fields.pop("pid", PID + number), NOW - 100, **fields
    )


def evidence(*ranks: RankEvidence, source: dict[str, str] | None = None, **fields: Any) -> Evidence:
    """`source`: file of the project → its text."""
    sources = tuple(Source(USER + file, 1, text) for file, text in (source or {}).items())
    fields.setdefault("stall_after_s", 10.0)
    fields.setdefault("hosts", (HostEvidence("node-1", oom_kills=0),))
    return Evidence(1, NOW, NOW - 100, fields.pop("trigger", "still"), len(ranks), ranks, sources=sources, **fields)
