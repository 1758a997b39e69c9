"""A process that cannot run: stopped, in uninterruptible sleep, or with its interpreter lock kept."""

from __future__ import annotations

from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.views import (
    LIFE_IO_BYTES_PER_S,
    current_where,
    innermost_user_frame,
    io_rate,
    place,
    where,
)
from rankscope.evidence.model import ProcessSample, RankEvidence, StackSample, Thread

STOPPED = frozenset({"T", "t"})
NETWORK_FILE_SYSTEMS = ("nfs", "rpc_", "fuse", "ceph", "cifs", "smb", "ll_", "cl_", "gpfs", "lustre", "p9_")
_NOT_TELLING = (
    "ffi_",
    "_call_function_pointer",
    "_ctypes",
    "PyCFuncPtr",
    "__",
    "_Py",
    "Py",
    "syscall",
    "futex",
    "do_futex",
    "0x",
)


def stopped_words(samples: tuple[ProcessSample, ...]) -> str | None:
    """What keeps a process from running at all; None when nothing does."""
    if not samples:
        return None
    newest = samples[-1]
    # Taking a native stack stops a process for a moment, as a debugger does.
    held = newest.state == "t" and len(samples) > 1 and samples[-2].state in STOPPED
    if newest.state == "T" or held:
        return "stopped (SIGSTOP or a debugger)"
    still = (io_rate(samples) or 0.0) < LIFE_IO_BYTES_PER_S
    if len(samples) > 1 and still and all(sample.state == "D" for sample in samples):
        return f"in uninterruptible sleep in {newest.wchan or 'the kernel'}"
    return None


def frozen(rank: RankEvidence) -> Stand | None:
    words = stopped_words(rank.processes)
    if words is None:
        return None
    newest = rank.processes[-1]
    at = current_where(rank)
    state = f"the kernel says state {newest.state} for process {rank.pid}"
    if newest.state in STOPPED:
        return Stand(
            cause="frozen-process",
            at=at,
            doing=words,
            because=(f"{state}: stopped", *movement(rank)),
            fix=(
                f"let it run again: kill -CONT {rank.pid}",
                "find who stops it: a debugger, Ctrl-Z, a scheduler that suspends jobs, `kill -STOP`",
            ),
            summary=f"the process of rank {rank.rank} is {words}" + (f", in {place(at)}" if at else ""),
        )
    remote = newest.wchan is not None and newest.wchan.startswith(NETWORK_FILE_SYSTEMS)
    alternatives: tuple[Possibility, ...] = ()
    if remote:
        because = f"{newest.wchan} belongs to a network file system that may not answer"
        alternatives = (Possibility("blocked-call", "possible", because),)
    return Stand(
        cause="frozen-process",
        at=at,
        doing=words,
        because=(f"{state} in all {len(rank.processes)} samples: uninterruptible sleep", *movement(rank)),
        fix=(
            "look at the device or file system behind it: `dmesg` for I/O errors, `df` for one that does not answer",
            "such a process cannot be killed until the kernel's call returns",
        ),
        alternatives=alternatives,
        summary=f"the process of rank {rank.rank} is {words}" + (f", in {place(at)}" if at else ""),
    )


def gil_held(rank: RankEvidence) -> Stand | None:
    """Native code that keeps the interpreter lock; asked only of a rank that does not move."""
    holder = _holder(rank)
    if holder is None:
        return None
    thread, proof = holder
    at = where(innermost_user_frame(thread.frames))
    native = _native_function(rank.stacks, thread.tid)
    doing = f"native code{f' ({native})' if native else ''} keeps the interpreter lock"
    which = "its main thread" if thread.main else f"its thread {thread.name or thread.tid}"
    return Stand(
        cause="gil-held",
        at=at,
        doing=doing,
        because=(f"{which} {proof}", *movement(rank)),
        fix=(
            "release the interpreter lock around the blocking call: ctypes.CDLL instead of PyDLL, "
            "`Py_BEGIN_ALLOW_THREADS`, `py::call_guard<py::gil_scoped_release>`, `with nogil:`",
            "give the native call a time limit, or make it in a process of its own",
        ),
        alternatives=(
            Possibility("blocked-call", "possible", "the native call may wait for something outside the job"),
        ),
        summary=f"rank {rank.rank} is stuck in {place(at)}: {doing}",
        references=("pytorch/pytorch#109074",),
    )


def _holder(rank: RankEvidence) -> tuple[Thread, str] | None:
    """The thread that was seen to hold the interpreter lock, and how it was seen."""
    if not rank.stacks:
        return None
    holders = [thread for sample in rank.stacks for thread in sample.threads if thread.owns_gil]
    newest = next((thread for thread in rank.stacks[-1].threads if thread.owns_gil), None)
    if newest is None:
        return None
    alike = [
        thread for thread in holders if thread.tid == newest.tid and _python_lines(thread) == _python_lines(newest)
    ]
    if len(alike) > 1:
        return newest, f"holds the interpreter lock in {len(alike)} samples, on the same line"
    if any("interpreter lock" in reason for reason in rank.missing.values()):
        return newest, "holds the interpreter lock, and no other Python thread of the rank answered"
    return None


def _python_lines(thread: Thread) -> tuple[tuple[str, int], ...]:
    return tuple((frame.file, frame.line) for frame in thread.frames if not frame.native)


def _native_function(stacks: tuple[StackSample, ...], tid: int) -> str | None:
    """The innermost native function with a telling name."""
    for sample in reversed(stacks):
        if sample.source != "py-spy-native":
            continue
        for thread in sample.threads:
            if thread.tid != tid:
                continue
            inner = []
            for frame in thread.frames:
                if not frame.native:
                    break
                inner.append(frame.function)
            telling = [name for name in inner if not name.startswith(_NOT_TELLING)]
            return telling[0] if telling else None
    return None
