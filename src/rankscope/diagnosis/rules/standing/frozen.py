"""A process that cannot run: stopped, in uninterruptible sleep, or with its interpreter lock kept."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import (
    CannotRun,
    Frozen,
    HoldsInterpreterLock,
    KernelState,
    NotRuledOut,
    OnNetworkFileSystem,
    SeenHoldingLock,
)
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import native_function
from rankscope.diagnosis.rules.standing.stand import AWAITED, Stand, movement
from rankscope.diagnosis.views import LIFE_IO_BYTES_PER_S, current_where, innermost_user_frame, io_rate, where
from rankscope.evidence.model import ProcessSample, RankEvidence, Thread

NETWORK_FILE_SYSTEMS = ("nfs", "rpc_", "fuse", "ceph", "cifs", "smb", "ll_", "cl_", "gpfs", "lustre", "p9_")
_STOPPED = frozenset({"T", "t"})


def frozen_state(samples: tuple[ProcessSample, ...]) -> Frozen | None:
    """What keeps a process from running at all; None when nothing does."""
    if not samples:
        return None
    newest = samples[-1]
    # Taking a native stack stops a process for a moment, as a debugger does.
    held = newest.state == "t" and len(samples) > 1 and samples[-2].state in _STOPPED
    if newest.state == "T" or held:
        return Frozen(stopped=True)
    still = (io_rate(samples) or 0.0) < LIFE_IO_BYTES_PER_S
    if len(samples) > 1 and still and all(sample.state == "D" for sample in samples):
        return Frozen(stopped=False, wchan=newest.wchan or "")
    return None


def frozen(rank: RankEvidence) -> Stand | None:
    state = frozen_state(rank.processes)
    if state is None:
        return None
    at = current_where(rank)
    remote = state.wchan.startswith(NETWORK_FILE_SYSTEMS)
    return Stand(
        cause="frozen-process",
        at=at,
        doing=state,
        because=(KernelState(rank.pid, rank.processes[-1].state, len(rank.processes)), *movement(rank)),
        fix=(Advice("continue-process", pid=rank.pid), Advice("who-stops-it"))
        if state.stopped
        else (Advice("look-at-device"), Advice("cannot-be-killed")),
        alternatives=(Possibility("blocked-call", "possible", OnNetworkFileSystem(state.wchan)),) if remote else (),
        summary=CannotRun(rank.rank, at, state),
        explains=AWAITED,
    )


def gil_held(rank: RankEvidence) -> Stand | None:
    """Native code that keeps the interpreter lock; asked only of a rank that does not move."""
    holder = _holder(rank)
    if holder is None:
        return None
    thread, samples = holder
    return Stand(
        cause="gil-held",
        at=where(innermost_user_frame(thread.frames)),
        doing=HoldsInterpreterLock(native_function(rank.stacks, thread.tid)),
        because=(SeenHoldingLock(None if thread.main else thread.name or str(thread.tid), samples), *movement(rank)),
        fix=(Advice("release-interpreter-lock"), Advice("native-time-limit")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("native-call")),),
        references=("pytorch/pytorch#109074",),
        explains=AWAITED,
    )


def _holder(rank: RankEvidence) -> tuple[Thread, int] | None:
    """The thread that holds the interpreter lock, and in how many samples it was seen to; in one alone, no other Python
    thread of the rank answered."""
    if not rank.stacks:
        return None
    holders = [thread for sample in rank.stacks for thread in sample.threads if thread.owns_gil]
    newest = next((thread for thread in rank.stacks[-1].threads if thread.owns_gil), None)
    if newest is None:
        return None
    alike = [
        thread for thread in holders if thread.tid == newest.tid and _python_lines(thread) == _python_lines(newest)
    ]
    silent = any("interpreter lock" in reason for reason in rank.missing.values())
    return (newest, len(alike)) if len(alike) > 1 or silent else None


def _python_lines(thread: Thread) -> tuple[tuple[str, int], ...]:
    return tuple((frame.file, frame.line) for frame in thread.frames if not frame.native)
