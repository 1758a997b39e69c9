"""A rank that waits for its data loader: which worker does not deliver, and what it does instead."""

from __future__ import annotations

from rankscope.diagnosis.finding import Possibility, Suspect
from rankscope.diagnosis.rules.standing.frames import in_module, library_call, own_frames
from rankscope.diagnosis.rules.standing.frozen import stopped_words
from rankscope.diagnosis.rules.standing.locks import in_lock
from rankscope.diagnosis.rules.standing.outside import outside_words
from rankscope.diagnosis.rules.standing.slow import at_work
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import (
    current_where,
    innermost_user_frame,
    moving,
    newest_main_thread,
    place,
    where,
)
from rankscope.evidence.model import ChildProcess, Evidence, RankEvidence

_IDLE_MODULES = ("multiprocessing/", "selectors.py", "threading.py", "queue.py", "torch/multiprocessing/")
_IDLE_CALLS = frozenset({"poll", "ppoll", "select", "pselect6", "futex"})
_FORK_FIX = (
    "do not start threads, open locks or use OpenMP, OpenCV or tokenizers before the workers are forked: "
    "cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false, or multiprocessing_context='spawn'"
)


def loader_stuck(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """None unless the main thread waits for a batch of worker processes, or the loader lost them."""
    main = newest_main_thread(rank)
    if main is None or not any(in_module(frame, "torch/utils/data/dataloader.py") for frame in main.frames):
        return None
    user = innermost_user_frame(main.frames)
    before = main.frames[: main.frames.index(user)] if user is not None else main.frames
    # A dataset's own code above the loader's frames: it runs in the main thread, without workers.
    if not any(in_module(frame, "torch/utils/data/dataloader.py") for frame in before):
        return None
    workers = tuple(child for child in rank.children if child.kind == "dataloader-worker")
    declared = rank.progress.loader.workers if rank.progress is not None and rank.progress.loader is not None else 0
    if not workers and declared == 0:
        return None
    stuck = tuple(worker for worker in workers if not moving(worker) and not _idle(worker))
    if stuck:
        return _stuck(rank, stuck, evidence, len(workers))
    if any(moving(worker) for worker in workers):
        return at_work(rank)
    if moving(rank):
        return at_work(rank)
    return _nobody(rank, workers, declared)


def _idle(worker: ChildProcess) -> bool:
    """Waiting for its next index: innocent."""
    if stopped_words(worker.processes) is not None:
        return False
    frames = own_frames(worker)
    if frames is not None:
        return all(any(in_module(frame, module) for module in _IDLE_MODULES) for frame in frames if not frame.native)
    if not worker.processes:
        return True  # nothing is known against it
    call = worker.processes[-1].syscall
    return call is None or call.name in _IDLE_CALLS


def _stuck(rank: RankEvidence, stuck: tuple[ChildProcess, ...], evidence: Evidence, total: int) -> Stand:
    worker = stuck[0]
    at, doing = _place(worker), _doing(worker, evidence, rank)
    loop = current_where(rank)
    others = tuple(
        Suspect(rank.rank, rank.host, each.pid, "dataloader-worker", _place(each), _doing(each, evidence, rank))
        for each in stuck[1:]
    )
    fix = [f"make the worker's call end: it stands in {place(at)}; give it a time limit"]
    if worker.processes and (told := outside_words(worker.processes[-1], rank.environment)) is not None:
        fix = [*told[1]]
    if "stopped" in doing:
        fix = [f"let it run again: kill -CONT {worker.pid}", "find who stopped it"]
    return Stand(
        cause="dataloader-stuck",
        at=at,
        doing=doing,
        because=(
            f"the main thread waits for a batch in {place(loop)}",
            f"{len(stuck)} of {total} data-loading workers stuck: process {worker.pid} in {place(at)}",
            *movement(worker),
            *movement(rank),
        ),
        fix=(*fix, "DataLoader(timeout=...) turns such a wait into an error", _FORK_FIX),
        alternatives=(
            Possibility("blocked-call", "possible", f"the worker's own call may be what is blocked: {doing}"),
        ),
        summary=f"a data-loading worker of rank {rank.rank} is stuck in {place(at)}, {doing}",
        process="dataloader-worker",
        pid=worker.pid,
        others=others,
        references=("pytorch/pytorch#1355", "pytorch/pytorch#45198"),
    )


def _place(worker: ChildProcess) -> Where | None:
    frames = own_frames(worker)
    return where(innermost_user_frame(frames)) if frames is not None else None


def _doing(worker: ChildProcess, evidence: Evidence, rank: RankEvidence) -> str:
    frames = own_frames(worker) or ()
    newest = worker.processes[-1] if worker.processes else None
    if (words := stopped_words(worker.processes)) is not None:
        return words
    if newest is not None and newest.waits_for_lock is not None:
        return f"waiting for the lock of {newest.waits_for_lock.path}"
    if newest is not None and (told := outside_words(newest, rank.environment)) is not None:
        return told[0]
    if in_lock(frames, newest, evidence):
        return "waiting for a lock inside its own process"
    called = library_call(frames)
    return f"standing in {called}" if called else "standing there without moving"


def _nobody(rank: RankEvidence, workers: tuple[ChildProcess, ...], declared: int) -> Stand:
    at = current_where(rank)
    alive = len(workers)
    if alive < declared:
        told = f"{declared - alive} of {declared} data-loading workers are gone"
    else:
        told = f"all {alive} data-loading workers wait for work"
    return Stand(
        cause="dataloader-stuck",
        at=at,
        doing="waiting for a batch that no data-loading worker prepares",
        because=(told, f"the main thread waits for a batch in {place(at)}", *movement(rank)),
        fix=(
            "look for a worker that died: memory (`dmesg`), /dev/shm, a crash in native code",
            "a hand-over can be lost when a worker is killed while it holds the queue: restart the job",
            "DataLoader(timeout=...) turns such a wait into an error",
        ),
        alternatives=(Possibility("blocked-call", "possible", "the batch may be held up in the loader's own threads"),),
        references=("pytorch/pytorch#1355",),
    )
