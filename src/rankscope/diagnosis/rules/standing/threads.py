"""Other threads of the rank: one that the main thread waits for, and one that keeps a finished program alive."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import (
    AwaitsThread,
    Joins,
    KeepsAlive,
    NotRuledOut,
    ProgramOver,
    ThreadStands,
)
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import (
    above_user,
    in_module,
    library_call,
    other_threads,
    own_frames,
    package_of,
)
from rankscope.diagnosis.rules.standing.locks import in_lock
from rankscope.diagnosis.rules.standing.stand import AWAITED, Stand, certainty_of, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import (
    current_where,
    innermost_user_frame,
    moving,
    newest_main_thread,
    python_frames,
    where,
)
from rankscope.evidence.model import ChildProcess, Evidence, Frame, RankEvidence, Thread

_POOL = "multiprocessing/pool.py"
_PROCESS = "multiprocessing/process.py"
_JOINS = (
    ("threading.py", frozenset({"join", "_wait_for_tstate_lock"})),
    ("concurrent/futures/_base.py", frozenset({"result", "exception", "as_completed", "wait", "result_iterator"})),
    ("concurrent/futures/thread.py", frozenset({"shutdown", "__exit__"})),
    (_POOL, frozenset({"get", "wait", "join", "next"})),
    ("asyncio/base_events.py", frozenset({"run_until_complete"})),
)
_EXECUTOR = "concurrent/futures/thread.py"
_EXIT_FIX = (Advice("end-the-thread"), Advice("daemon-thread"))


def joined_thread(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """The main thread waits for another thread of its own: what that thread does is the answer."""
    main = newest_main_thread(rank)
    if main is None or not any(in_module(frame, *join) for frame in above_user(main.frames) for join in _JOINS):
        return None
    threads = _awaited_threads(rank, main)
    if not threads:
        return None
    thread = threads[0]
    name = thread.name or str(thread.tid)
    user = where(innermost_user_frame(main.frames))
    locked = in_lock(thread.frames, None, evidence)
    return Stand(
        cause="lock-wait" if locked else "blocked-call",
        at=where(innermost_user_frame(thread.frames)) or user,
        doing=AwaitsThread(name, library_call(thread.frames) or _inner_call(thread)),
        because=(
            Joins(user, name),
            *(
                ThreadStands(each.name or str(each.tid), where(innermost_user_frame(each.frames)), _inner_call(each))
                for each in threads
            ),
            *movement(rank),
        ),
        fix=(Advice("thread-time-limit"), Advice("join-time-limit")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("thread-outside")),) if locked else (),
        explains=AWAITED,
    )


def _awaited_threads(rank: RankEvidence, main: Thread) -> tuple[Thread, ...]:
    """Threads in the user's code, and executors' threads in the middle of a task. A package that was called waits for
    threads that run its own code, a pool for its workers, a future and an event loop for executors where there are."""
    inner = above_user(main.frames)
    threads = rank.stacks[-1].threads
    users = other_threads(threads)
    tasks = tuple(each for each in threads if not each.main and _in_task(each))
    if any(in_module(frame, "asyncio/") for frame in inner):
        return tasks
    if any(in_module(frame, _POOL) for frame in inner):
        return tuple(each for each in users if any(in_module(frame, _POOL, {"worker"}) for frame in each.frames))
    if tasks and any(in_module(frame, "concurrent/futures/") for frame in inner):
        return tasks
    package = package_of(inner[-1])
    return tuple(
        each for each in users if package is None or any(package_of(frame) == package for frame in each.frames)
    )


def _in_task(thread: Thread) -> bool:
    return any(in_module(frame, _EXECUTOR, {"run"}) for frame in thread.frames)


def _inner_call(thread: Thread) -> str | None:
    """Of an executor's thread without the user's code: the function that it was given."""
    frames = python_frames(thread.frames)
    at = next((number for number, frame in enumerate(frames) if in_module(frame, _EXECUTOR, {"run"})), 0)
    return library_call((*frames[:at], Frame("", "", 0, user=True))) if at else None


def thread_alive(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """The program is done, but a thread, a child or a queue keeps its process from ending."""
    main = newest_main_thread(rank)
    frames = python_frames(main.frames) if main is not None else ()
    at_exit = any(in_module(frame, "multiprocessing/util.py", {"_exit_function"}) for frame in frames)
    joins_threads = any(
        in_module(frame, "threading.py", {"_shutdown"})
        or in_module(frame, "concurrent/futures/thread.py", {"_python_exit"})
        or in_module(frame, "concurrent/futures/process.py", {"_python_exit"})
        for frame in frames
    )
    finalizing = rank.progress is not None and rank.progress.finalizing and innermost_user_frame(frames) is None
    if not (at_exit or joins_threads or finalizing):
        return None
    if any(in_module(frame, "multiprocessing/queues.py", {"_finalize_join", "join_thread"}) for frame in frames):
        return _kept_by_queue(rank, evidence)
    children = tuple(child for child in rank.children if child.kind == "child")
    thread = _keeper(rank)
    if children and (at_exit or thread is None):
        return _kept_by_child(rank, children[0], evidence)
    return _kept_by_thread(rank, thread, evidence, joins_threads=joins_threads)


def _kept_by_thread(rank: RankEvidence, thread: Thread | None, evidence: Evidence, *, joins_threads: bool) -> Stand:
    at = _thread_place(thread) if thread is not None else None
    name = thread.name or str(thread.tid) if thread is not None else ""
    keeper = KeepsAlive("thread" if thread is not None else "handler", name, rank=rank.rank, where=at)
    return Stand(
        cause="thread-alive",
        at=at if at is not None else current_where(rank),
        doing=keeper,
        because=(
            ProgramOver("threads" if joins_threads else "handlers"),
            *((ThreadStands(name, at),) if at is not None else ()),
            *movement(rank),
        ),
        fix=_EXIT_FIX,
        summary=keeper,
        certainty=certainty_of(rank, evidence) if thread is not None and not moving(rank) else "possible",
    )


def _kept_by_queue(rank: RankEvidence, evidence: Evidence) -> Stand:
    """What was put into a queue between processes is still to be written, and nobody reads it."""
    keeper = KeepsAlive("feeder", rank=rank.rank)
    return Stand(
        cause="thread-alive",
        at=current_where(rank),
        doing=keeper,
        because=(ProgramOver("queue"), *movement(rank)),
        fix=(Advice("empty-queue"), Advice("cancel-join-thread")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("queue-reader")),),
        summary=keeper,
        certainty="possible" if moving(rank) else certainty_of(rank, evidence),
    )


def _kept_by_child(rank: RankEvidence, child: ChildProcess, evidence: Evidence) -> Stand:
    at = where(innermost_user_frame(own_frames(child) or ()))
    keeper = KeepsAlive("child", child.command, child.pid, rank.rank, at)
    return Stand(
        cause="thread-alive",
        at=_started_at(child) or at,
        doing=keeper,
        because=(ProgramOver("children"), *movement(rank)),
        fix=(Advice("end-the-child"), Advice("daemon-child")),
        summary=keeper,
        process="child",
        pid=child.pid,
        certainty="possible" if moving(child) else certainty_of(rank, evidence),
    )


def _started_at(child: ChildProcess) -> Where | None:
    """The line that started a forked child, which has its parent's frames below its own: that is where to say how it
    ends."""
    main = next((thread for stack in child.stacks[-1:] for thread in stack.threads if thread.main), None)
    frames = main.frames if main is not None else ()
    start = next((at for at, frame in enumerate(frames) if in_module(frame, _PROCESS, {"start"})), None)
    return where(innermost_user_frame(frames[start:])) if start is not None else None


def _keeper(rank: RankEvidence) -> Thread | None:
    """The thread that most likely keeps the process: one in the user's code, else one of a package."""
    if not rank.stacks:
        return None
    threads = rank.stacks[-1].threads
    users = other_threads(threads)
    if users:
        return users[0]
    return next((thread for thread in threads if not thread.main and _library_place(thread.frames) is not None), None)


def _thread_place(thread: Thread) -> Where | None:
    return where(innermost_user_frame(thread.frames) or _library_place(thread.frames))


def _library_place(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of an installed package other than torch and Rankscope."""
    return next(
        (
            frame
            for frame in python_frames(frames)
            if "-packages/" in frame.file and "/rankscope/" not in frame.file and "/torch/" not in frame.file
        ),
        None,
    )
