"""Other threads of the rank: one that the main thread joins, and one that keeps a finished program alive."""

from __future__ import annotations

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
from rankscope.diagnosis.rules.standing.stand import Stand, certainty_of, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import (
    current_where,
    innermost_user_frame,
    moving,
    newest_main_thread,
    place,
    python_frames,
    where,
)
from rankscope.evidence.model import ChildProcess, Evidence, Frame, RankEvidence, Thread

_JOINS = (
    ("threading.py", frozenset({"join", "_wait_for_tstate_lock"})),
    (
        "concurrent/futures/_base.py",
        frozenset({"result", "exception", "as_completed", "wait", "result_iterator"}),
    ),
    ("concurrent/futures/thread.py", frozenset({"shutdown", "__exit__"})),
)
_EXIT_FIX = (
    "end the thread before the program ends: set an event that its loop looks at, then join it",
    "or start it with daemon=True, so that it does not keep the process",
)


def joined_thread(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """The main thread waits for another thread of its own: what that thread does is the answer."""
    main = newest_main_thread(rank)
    if main is None or not any(in_module(frame, *join) for frame in above_user(main.frames) for join in _JOINS):
        return None
    # A package that was called waits for threads that run its own code.
    package = package_of(above_user(main.frames)[-1])
    threads = tuple(
        each
        for each in other_threads(rank.stacks[-1].threads)
        if package is None or any(package_of(frame) == package for frame in each.frames)
    )
    if not threads:
        return None
    thread = threads[0]
    at = where(innermost_user_frame(thread.frames))
    called = library_call(thread.frames)
    name = f"its thread {thread.name or thread.tid}"
    waiting = place(where(innermost_user_frame(main.frames)))
    locked = in_lock(thread.frames, None, evidence)
    return Stand(
        cause="lock-wait" if locked else "blocked-call",
        at=at,
        doing=f"{name} does not finish" + (f": it stands in {called}" if called else ""),
        because=(
            f"the main thread waits in {waiting} for {name}",
            *(
                f"thread {each.name or each.tid} stands in {place(where(innermost_user_frame(each.frames)))}"
                for each in threads
            ),
            *movement(rank),
        ),
        fix=(
            "give what the thread does a time limit",
            "join with a timeout, and say which thread is still running",
        ),
        alternatives=(Possibility("blocked-call", "possible", "the thread may wait for something outside"),)
        if locked
        else (),
    )


def thread_alive(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """The program is done, but a thread or a child keeps its process from ending."""
    main = newest_main_thread(rank)
    frames = python_frames(main.frames) if main is not None else ()
    joins_children = any(in_module(frame, "multiprocessing/util.py", {"_exit_function"}) for frame in frames)
    joins_threads = any(
        in_module(frame, "threading.py", {"_shutdown"})
        or in_module(frame, "concurrent/futures/thread.py", {"_python_exit"})
        for frame in frames
    )
    finalizing = rank.progress is not None and rank.progress.finalizing and innermost_user_frame(frames) is None
    if not (joins_children or joins_threads or finalizing):
        return None
    children = tuple(child for child in rank.children if child.kind == "child")
    thread = _keeper(rank)
    if children and (joins_children or thread is None):
        return _kept_by_child(rank, children[0], evidence)
    at = _thread_place(thread) if thread is not None else None
    name = f"thread {thread.name or thread.tid}" if thread is not None else "an exit handler"
    doing = f"{name} keeps the finished program alive"
    proof = (
        "the main thread has left the program and waits for other threads"
        if joins_threads
        else ("the program is over and the interpreter runs its exit handlers")
    )
    return Stand(
        cause="thread-alive",
        at=at if at is not None else current_where(rank),
        doing=doing,
        because=(proof, *((f"{name} stands in {place(at)}",) if at is not None else ()), *movement(rank)),
        fix=_EXIT_FIX,
        summary=f"rank {rank.rank} has finished, but {name} in {place(at)} keeps it from exiting",
        certainty=certainty_of(rank, evidence) if thread is not None and not moving(rank) else "possible",
    )


def _kept_by_child(rank: RankEvidence, child: ChildProcess, evidence: Evidence) -> Stand:
    frames = own_frames(child) or ()
    at = where(innermost_user_frame(frames))
    name = f"child process {child.pid} ({child.command[:60]})"
    return Stand(
        cause="thread-alive",
        at=at,
        doing=f"{name} keeps the finished program alive",
        because=(
            "the program is over and waits for its child processes",
            f"{name} stands in {place(at)}",
            *movement(rank),
        ),
        fix=(
            "tell the child to end and join it before the program ends, or terminate() it",
            "or start it with daemon=True, so that it ends with its parent",
        ),
        summary=f"rank {rank.rank} has finished, but its {name} keeps it from exiting",
        process="child",
        pid=child.pid,
        certainty="possible" if moving(child) else certainty_of(rank, evidence),
    )


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
