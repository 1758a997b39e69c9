"""A rank that waits for a lock: of a file, of a lock file somebody left behind, or of its own process."""

from __future__ import annotations

import re

from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, other_threads, plain_name, source_line
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.views import (
    alive,
    current_where,
    innermost_user_frame,
    newest_main_thread,
    place,
    python_frames,
    where,
)
from rankscope.evidence.model import Evidence, FileLock, Frame, ProcessSample, RaisedException, RankEvidence

_TAKES = frozenset({"acquire", "__enter__", "wait", "wait_for", "_acquire", "_acquire_restore"})
_LOCK_MODULES = ("threading.py", "multiprocessing/synchronize.py")
_LOCK_LINE = re.compile(r"^(?:async\s+)?with\b.+:|\.acquire\s*\(|\.lock\s*\(")
_WAITED_ON = re.compile(r'Waited on lock file "([^"]+)"')


def lock_wait(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    newest = rank.processes[-1] if rank.processes else None
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    if newest is not None:
        call = newest.syscall.name if newest.syscall is not None else None
        if newest.waits_for_lock is not None and call in {None, "flock", "fcntl", "futex"}:
            return _file_lock(rank, evidence, newest.waits_for_lock)
        if call == "flock" or (call == "fcntl" and _innermost_locks(frames, evidence)):
            path = newest.syscall.target if newest.syscall is not None else None
            return _file_lock(rank, evidence, FileLock(path or "a file", call, None))
    if polls_lock_file(frames):
        return _lock_file(rank)
    if in_lock(frames, newest, evidence):
        return _process_lock(rank)
    return None


def polls_lock_file(frames: tuple[Frame, ...]) -> bool:
    """In a library that tries a lock file again and again, sleeping in between."""
    return any(
        in_module(frame, "torch/utils/file_baton.py", {"wait"})
        or in_module(frame, "filelock/", {"acquire", "__enter__"})
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
    return futex and seen[0].user and _LOCK_LINE.search(source_line(evidence, seen[0])) is not None


def _innermost_locks(frames: tuple[Frame, ...], evidence: Evidence) -> bool:
    """fcntl does more than locking: the line or the library must speak of a lock."""
    user = innermost_user_frame(frames)
    return "lock" in source_line(evidence, user).lower() or any(
        "lock" in plain_name(frame) for frame in above_user(frames)
    )


def _file_lock(rank: RankEvidence, evidence: Evidence, lock: FileLock) -> Stand:
    at = current_where(rank)
    holder = _holder_words(lock.holder, rank, evidence)
    doing = f"waiting for the lock of {lock.path}" + (f", held by {holder}" if holder else "")
    fix = [
        f"end or mend the holder: {holder}" if holder else f"find the holder: `lslocks`, or `fuser -v {lock.path}`",
        "take the lock without waiting (LOCK_NB) or with a time limit, and say what is waited for",
    ]
    if holder is None:
        fix.append("on a network file system locks may not work at all: keep the lock on a local disk")
    return Stand(
        cause="lock-wait",
        at=at,
        doing=doing,
        because=(
            f"the kernel lists process {rank.pid} as waiting for the {lock.kind} lock of {lock.path}",
            *movement(rank),
        )
        if lock.holder is not None
        else (f"the main thread stands in {lock.kind} on {lock.path}", *movement(rank)),
        fix=tuple(fix),
        alternatives=(
            Possibility("blocked-call", "possible", "the file system may not answer the request for the lock"),
        ),
        references=("huggingface/datasets#329", "huggingface/datasets#2618"),
    )


def _holder_words(pid: int | None, waiter: RankEvidence, evidence: Evidence) -> str | None:
    if pid is None:
        return None
    for rank in (each for each in evidence.ranks if each.host == waiter.host):
        if rank.pid == pid:
            if rank.rank == waiter.rank:
                return f"the same process ({pid})"
            at = current_where(rank)
            standing = f", which stands in {place(at)}" if at is not None else ""
            return f"rank {rank.rank} (process {pid})" + (standing if alive(rank) else ", which has ended")
        for child in rank.children:
            if child.pid == pid:
                return f"a child of rank {rank.rank} (process {pid}: {child.command[:80]})"
    return f"process {pid} outside the job"


def _lock_file(rank: RankEvidence) -> Stand:
    found = [match[1] for line in (*rank.error_tail, *rank.output_tail) if (match := _WAITED_ON.search(line))]
    name = found[-1] if found else "a lock file"
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=f"waiting for {name} to be released",
        because=(
            "the stack stands in a library's loop that looks at a lock file and sleeps",
            *movement(rank),
        ),
        fix=(
            f"if no process builds or downloads there now, {name} was left by one that was killed: delete it",
            "for torch extensions: remove the `lock` file under ~/.cache/torch_extensions",
            "give the lock a time limit",
        ),
        alternatives=(Possibility("blocked-call", "possible", "the holder may be alive and at work"),),
        references=("PASSIONLab/OpenEquivariance#207", "openvinotoolkit/nncf#1033"),
    )


def _process_lock(rank: RankEvidence) -> Stand:
    threads = other_threads(rank.stacks[-1].threads)
    others = [
        f"thread {each.name or each.tid} stands in {place(where(innermost_user_frame(each.frames)))}"
        for each in threads
    ]
    holders = f" ({others[0]})" if len(others) == 1 else ""
    died = [_death(error) for error in rank.exceptions if error.source == "output" and error.thread != "MainThread"]
    advice = ("let the thread hand its exception over to whoever waits for it: put it into the queue, or use a future",)
    return Stand(
        cause="lock-wait",
        at=current_where(rank),
        doing=f"waiting for a lock or a signal of another thread{f', while {died[-1]}' if died else holders}",
        because=("the main thread waits for a lock inside its own process", *died, *others, *movement(rank)),
        fix=(
            *(advice if died else ()),
            "see that every path out of the locked part releases the lock (`with lock:`), and that all "
            "threads take locks in one order",
            "do not hold a lock across a collective, or across fork: the child inherits it without its holder",
            "wait with a time limit",
        ),
        alternatives=(
            Possibility("exception", "likely", died[-1])
            if died
            else Possibility("blocked-call", "possible", "the thread that should release it may be blocked outside"),
        ),
    )


def _death(error: RaisedException) -> str:
    """Of a thread that nobody hears of any more."""
    at = innermost_user_frame(error.frames)
    seen = f" at {place(where(at))}" if at is not None else ""
    return f"thread {error.thread} has ended with {error.type}{seen}"
