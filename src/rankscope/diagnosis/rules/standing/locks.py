"""A rank that waits for a lock: of a file, a lock file that somebody left behind, a database, or its own process."""

from __future__ import annotations

import re
from itertools import dropwhile
from typing import Literal

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import (
    AwaitsDatabase,
    AwaitsFileLock,
    AwaitsLock,
    AwaitsLockFile,
    Holder,
    InSyscall,
    ListedAsWaiting,
    NotRuledOut,
    ThreadDied,
    ThreadStands,
)
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import (
    above_user,
    in_module,
    library_call,
    other_threads,
    plain_name,
    source_line,
)
from rankscope.diagnosis.rules.standing.outside import SLEEPS
from rankscope.diagnosis.rules.standing.stand import AWAITED, CALL, MECHANISM, Stand, movement
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.views import (
    alive,
    current_where,
    innermost_user_frame,
    main_thread,
    newest_main_thread,
    python_frames,
    where,
)
from rankscope.evidence.model import Evidence, FileLock, Frame, ProcessSample, RaisedException, RankEvidence

_TAKES = frozenset({"acquire", "__enter__", "wait", "wait_for", "_acquire", "_acquire_restore", "lock"})
_LOCK_MODULES = ("threading.py", "multiprocessing/synchronize.py")
_LOCK_LINE = re.compile(r"^(?:async\s+)?with\b.+:|\.acquire\s*\(|\.lock\s*\(")
_WAITED_ON = re.compile(r'Waited on lock file "([^"]+)"')
_LOCK_FILE = re.compile(r"/(?:[\w.-]*lock[\w.-]*|file_baton)(?:/[^/]*)*\.py$", re.IGNORECASE)
"""Packages and modules that are about locks: filelock, portalocker, lockfile, file_baton."""
_LOCK_WAITS = frozenset({"acquire", "__enter__", "wait", "lock", "_acquire", "_lock", "_wait"})
_STATEMENT = re.compile(r"\.(?:execute|executemany|executescript|commit|rollback)\s*\(")
_LOGGING = ("logging/__init__.py", "logging/handlers.py")

AWAITED_LOCK = Literal["lock", "handler", "queue-put", "queue-get", "future"]


def file_lock(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """By the kernel's own list of locks, or by the system call that takes one."""
    newest = rank.processes[-1] if rank.processes else None
    if newest is None:
        return None
    call = newest.syscall.name if newest.syscall is not None else None
    if newest.waits_for_lock is not None and call in {None, "flock", "fcntl", "futex"}:
        return _file_lock(rank, evidence, newest.waits_for_lock)
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    if call == "flock" or (call == "fcntl" and _speaks_of_lock(frames, evidence)):
        path = newest.syscall.target if newest.syscall is not None else None
        return _file_lock(rank, evidence, FileLock(path or "a file", call, None))
    return None


def lock_file(rank: RankEvidence) -> Stand | None:
    """A library's loop that looks at a lock file and sleeps."""
    thread = newest_main_thread(rank)
    if thread is None or not polls_lock_file(thread.frames):
        return None
    found = [match[1] for line in (*rank.error_tail, *rank.output_tail) if (match := _WAITED_ON.search(line))]
    path = found[-1] if found else None
    called = library_call(thread.frames)
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=AwaitsLockFile(path),
        because=(AwaitsLockFile(path, loop=called or ""), *movement(rank)),
        fix=(Advice("left-lock-file", path=path or "the lock file"), Advice("lock-time-limit")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("holder-alive")),),
        references=("PASSIONLab/OpenEquivariance#207", "openvinotoolkit/nncf#1033"),
    )


def database_lock(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """SQLite waits for another connection in short sleeps of its own, beneath the user's statement."""
    thread = newest_main_thread(rank)
    sample = rank.processes[-1] if rank.processes else None
    call = sample.syscall.name if sample is not None and sample.syscall is not None else None
    frames = python_frames(thread.frames) if thread is not None else ()
    if thread is None or not frames or call not in SLEEPS | {"fcntl"}:
        return None
    native = any("sqlite3" in frame.function for frame in thread.frames if frame.native)
    line = source_line(evidence, frames[0])
    text = next((source.text for source in evidence.sources if source.file == frames[0].file), "")
    stated = frames[0].user and _STATEMENT.search(line) is not None and "sleep" not in line
    if not native and not (stated and "sqlite" in text):
        return None
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=AwaitsDatabase(line),
        because=(InSyscall(call or ""), *movement(rank)),
        fix=(Advice("one-writer"), Advice("database-time-limit")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("file-system-lock")),),
    )


def process_lock(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """A lock, or a signal of another thread, inside the rank's own process."""
    thread = newest_main_thread(rank)
    newest = rank.processes[-1] if rank.processes else None
    frames = thread.frames if thread is not None else ()
    if not in_lock(frames, newest, evidence):
        return None
    beside = tuple(_stands(each.name or str(each.tid), each.frames) for each in other_threads(rank.stacks[-1].threads))
    printed = (error for error in rank.exceptions if error.source == "output" and error.thread != "MainThread")
    died = tuple(_death(error) for error in printed)
    kind = _kind(frames)
    if kind == "lock" and (own := _own_lock(rank, evidence)) is not None:
        return own
    suspect = died[-1] if died else beside[0] if len(beside) == 1 else None
    doing = AwaitsLock(kind, suspect)
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=doing,
        because=(AwaitsLock(kind), *died, *beside, *movement(rank)),
        fix=(*((Advice("hand-over-exception"),) if died else ()), *_LOCK_FIX.get(kind, _LOCK_FIX["lock"])),
        alternatives=(
            Possibility("exception", "likely", died[-1])
            if died
            else Possibility("blocked-call", "possible", NotRuledOut("releasing-thread")),
        ),
        explains=AWAITED if died else MECHANISM,
    )


def _own_lock(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """The thread holds what it waits for: by the source, and in both looks at its stack."""
    sites = [_from_user(thread.frames) for stack in rank.stacks if (thread := main_thread(stack)) is not None]
    if len(sites) < 2 or len(set(sites)) > 1:
        return None
    held = CodeReader(evidence).held_already(sites[0])
    if held is None:
        return None
    doing = AwaitsLock(held_at=where(held))
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=doing,
        because=(doing, *movement(rank)),
        fix=(Advice("lock-once", function=plain_name(sites[0][0])),),
        certainty="proven",
        explains=AWAITED,
    )


def _from_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """From the user's innermost frame on."""
    return tuple(dropwhile(lambda frame: not frame.user, python_frames(frames)))


_LOCK_FIX: dict[AWAITED_LOCK, tuple[Advice, ...]] = {
    "lock": (Advice("release-lock"), Advice("no-lock-across"), Advice("wait-time-limit")),
    "handler": (Advice("logging-handler"), Advice("no-lock-across")),
    "queue-put": (Advice("full-queue"), Advice("wait-time-limit")),
    "queue-get": (Advice("empty-thread-queue"), Advice("wait-time-limit")),
    "future": (Advice("future-time-limit"), Advice("wait-time-limit")),
}


def polls_lock_file(frames: tuple[Frame, ...]) -> bool:
    """In a library that tries a lock file again and again, sleeping in between."""
    return any(
        not frame.user and plain_name(frame) in _LOCK_WAITS and _LOCK_FILE.search(frame.file) is not None
        for frame in above_user(frames)
    )


def in_lock(frames: tuple[Frame, ...], sample: ProcessSample | None, evidence: Evidence) -> bool:
    """Whether the innermost frames take a lock of the process, or wait for another thread's signal."""
    seen = python_frames(frames)
    if not seen:
        return False
    call = sample.syscall.name if sample is not None and sample.syscall is not None else None
    futex = call == "futex" or (call is None and sample is not None and (sample.wchan or "").startswith("futex"))
    if call is not None and not futex:
        return False
    if any(in_module(seen[0], module, _TAKES) for module in _LOCK_MODULES):
        return True
    if not futex:
        return False
    if seen[0].user:
        return _LOCK_LINE.search(source_line(evidence, seen[0])) is not None
    # A lock in C leaves no frame: who takes it is named like it, or lies where every call takes one.
    return plain_name(seen[0]) in _TAKES or any(in_module(seen[0], module) for module in _LOGGING)


def _kind(frames: tuple[Frame, ...]) -> AWAITED_LOCK:
    inner = above_user(frames)
    if any(in_module(frame, "queue.py", {"put"}) for frame in inner):
        return "queue-put"
    if any(in_module(frame, "queue.py", {"get", "join"}) for frame in inner):
        return "queue-get"
    if any(in_module(frame, "concurrent/futures/_base.py") for frame in inner):
        return "future"
    if any(in_module(frame, module) for frame in inner for module in _LOGGING):
        return "handler"
    return "lock"


def _speaks_of_lock(frames: tuple[Frame, ...], evidence: Evidence) -> bool:
    """fcntl does more than locking: the line or the library must speak of a lock."""
    user = innermost_user_frame(frames)
    return "lock" in source_line(evidence, user).lower() or any(
        "lock" in plain_name(frame) for frame in above_user(frames)
    )


def _file_lock(rank: RankEvidence, evidence: Evidence, lock: FileLock) -> Stand:
    holder = _holder(lock.holder, rank, evidence)
    shown: tuple[ListedAsWaiting | InSyscall, ...] = (
        (ListedAsWaiting(rank.pid, lock.path, lock.kind),)
        if lock.holder is not None
        else (InSyscall(lock.kind, lock.path),)
    )
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=AwaitsFileLock(lock.path, lock.kind, holder),
        because=(*shown, *((holder,) if holder is not None else ()), *movement(rank)),
        fix=(Advice("mend-holder", pid=holder.pid), Advice("lock-without-waiting"))
        if holder is not None
        else (Advice("find-holder", path=lock.path), Advice("lock-without-waiting"), Advice("local-lock")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("file-system-lock")),),
        references=("huggingface/datasets#329", "huggingface/datasets#2618"),
        explains=AWAITED if holder is not None else CALL,
    )


def _holder(pid: int | None, waiter: RankEvidence, evidence: Evidence) -> Holder | None:
    if pid is None:
        return None
    for rank in (each for each in evidence.ranks if each.host == waiter.host):
        if rank.pid == pid:
            if rank.rank == waiter.rank:
                return Holder(pid, "same", rank.rank)
            return Holder(pid, "rank", rank.rank, current_where(rank), ended=not alive(rank))
        child = next((child for child in rank.children if child.pid == pid), None)
        if child is not None:
            return Holder(pid, "child", rank.rank, command=child.command)
    return Holder(pid, "outside")


def _stands(name: str, frames: tuple[Frame, ...]) -> ThreadStands:
    return ThreadStands(name, where(innermost_user_frame(frames)), library_call(frames))


def _death(error: RaisedException) -> ThreadDied:
    """Of a thread that nobody hears of any more."""
    return ThreadDied(error.thread, error.type, where(innermost_user_frame(error.frames)))
