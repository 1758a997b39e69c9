"""A rank that waits for processes that it started: a command, a pool's workers, the other end of a queue."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.standing import AwaitsChildren, AwaitsQueue, Child, NotRuledOut, StandsIn
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, library_call, own_frames
from rankscope.diagnosis.rules.standing.frozen import frozen_state
from rankscope.diagnosis.rules.standing.outside import outside_of
from rankscope.diagnosis.rules.standing.stand import AWAITED, CALL, Stand, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import current_where, innermost_user_frame, newest_main_thread, where
from rankscope.evidence.model import ChildProcess, Frame, ProcessSample, RankEvidence

_WAITS = frozenset({"wait4", "waitid"})
_MODULES = (
    *("subprocess.py", "multiprocessing/pool.py", "concurrent/futures/process.py", "multiprocessing/popen_fork.py"),
    *("multiprocessing/queues.py", "multiprocessing/connection.py", "multiprocessing/managers.py"),
    *("multiprocessing/resource_sharer.py", "multiprocessing/process.py", "torch/multiprocessing/spawn.py"),
)
"""Whoever stands in them waits for another process, whatever system call that takes."""
_FUTURES = "concurrent/futures/_base.py"
_IDLE = ("multiprocessing/", "selectors.py", "threading.py", "queue.py", "concurrent/futures/process.py")
_POOLS = ("multiprocessing/pool.py", "concurrent/futures/process.py")


def awaited_child(rank: RankEvidence) -> Stand | None:
    """The main thread waits for a child process, by its system call or its library frames."""
    awaited = _awaited(rank)
    if not awaited:
        return None
    children = tuple(_child(child, rank) for child in awaited)
    idle = all(_waits_for_work(child) for child in awaited)
    doing = AwaitsChildren(children, idle)
    stopped = frozen_state(awaited[0].processes)
    return Stand(
        cause="blocked-call",
        at=current_where(rank),
        doing=doing,
        because=(AwaitsChildren(tuple(Child(each.pid, each.command) for each in children)), *movement(rank)),
        fix=(Advice("lost-task"), Advice("child-timeout")) if idle else (Advice("child-timeout"), Advice("full-pipe")),
        alternatives=(Possibility("frozen-process", "possible", children[0]),) if stopped is not None else (),
        explains=AWAITED,
    )


def queue_wait(rank: RankEvidence) -> Stand | None:
    """A queue between processes that is full, or empty, or not yet written out."""
    main = newest_main_thread(rank)
    way = _way(above_user(main.frames)) if main is not None else None
    if way is None or main is None:
        return None
    called = library_call(main.frames)
    return Stand(
        cause="blocked-call",
        at=current_where(rank),
        doing=AwaitsQueue(way),
        because=(*((StandsIn(call=called),) if called else ()), *movement(rank)),
        fix=(Advice("empty-queue") if way != "get" else Advice("fill-queue"), Advice("queue-time-limit")),
        alternatives=(Possibility("lock-wait", "possible", NotRuledOut("queue-lock")),),
        explains=CALL,
    )


def _way(inner: tuple[Frame, ...]) -> Literal["put", "get", "flush"] | None:
    for frame in inner:
        if in_module(frame, "multiprocessing/queues.py", {"put"}):
            return "put"
        if in_module(frame, "multiprocessing/queues.py", {"get"}):
            return "get"
        if in_module(frame, "multiprocessing/queues.py", {"join_thread", "_finalize_join", "join"}):
            return "flush"
    return None


def _awaited(rank: RankEvidence) -> tuple[ChildProcess, ...]:
    children = tuple(child for child in rank.children if child.kind == "child")
    if not children or not rank.processes:
        return ()
    call = rank.processes[-1].syscall
    thread = newest_main_thread(rank)
    inner = above_user(thread.frames) if thread is not None else ()
    if call is not None and call.name in _WAITS:
        named = tuple(child for child in children if call.target == f"process {child.pid}")
        return named or tuple(child for child in children if child.ppid == rank.pid) or children
    standing = tuple(child for child in children if _place(child) is not None)
    if any(in_module(frame, module) for frame in inner for module in _MODULES):
        return standing or children
    if any(in_module(frame, _FUTURES) for frame in inner):
        return standing or tuple(child for child in children if _in_pool(child))
    if call is not None and (call.target or "").startswith("pipe") and len(children) == 1:
        return children
    return ()


def _child(child: ChildProcess, rank: RankEvidence) -> Child:
    state: Fact | None = frozen_state(child.processes)
    at = _place(child)
    if state is None and at is None and child.processes:
        state = outside_of(_newest(child), rank.environment)
    return Child(child.pid, child.command, at, state)


def _newest(child: ChildProcess) -> ProcessSample:
    return child.processes[-1]


def _place(child: ChildProcess) -> Where | None:
    frames = own_frames(child)
    return None if frames is None else where(innermost_user_frame(frames))


def _in_pool(child: ChildProcess) -> bool:
    frames = child.stacks[-1].threads if child.stacks else ()
    return any(in_module(frame, module) for each in frames if each.main for frame in each.frames for module in _POOLS)


def _waits_for_work(child: ChildProcess) -> bool:
    """A pool's worker without a task."""
    frames = own_frames(child)
    if not frames or not _in_pool(child) or frozen_state(child.processes) is not None:
        return False
    return all(any(in_module(frame, module) for module in _IDLE) for frame in frames if not frame.native)
