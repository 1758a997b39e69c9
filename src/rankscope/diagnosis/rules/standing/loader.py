"""A rank that waits for its data loader: which worker does not deliver, and what it does instead."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.standing import (
    AwaitsBatch,
    AwaitsFileLock,
    AwaitsLock,
    Frozen,
    NobodyPrepares,
    NotRuledOut,
    Outside,
    StandsIn,
    WorkersStuck,
    WorkerStuck,
)
from rankscope.diagnosis.finding import Possibility, Suspect
from rankscope.diagnosis.rules.standing.frames import in_module, library_call, own_frames
from rankscope.diagnosis.rules.standing.frozen import frozen_state
from rankscope.diagnosis.rules.standing.locks import in_lock
from rankscope.diagnosis.rules.standing.outside import advice_for, outside_of
from rankscope.diagnosis.rules.standing.slow import at_work
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import current_where, innermost_user_frame, moving, newest_main_thread, where
from rankscope.evidence.model import ChildProcess, Evidence, RankEvidence

_IDLE_MODULES = ("multiprocessing/", "selectors.py", "threading.py", "queue.py", "torch/multiprocessing/")
_IDLE_CALLS = frozenset({"poll", "ppoll", "select", "pselect6", "futex"})


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
    if any(moving(worker) for worker in workers) or moving(rank):
        return at_work(rank, evidence)
    return _nobody(rank, workers, declared)


def _idle(worker: ChildProcess) -> bool:
    """Waiting for its next index: innocent."""
    if frozen_state(worker.processes) is not None:
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
    others = tuple(
        Suspect(rank.rank, rank.host, each.pid, "dataloader-worker", _place(each), _doing(each, evidence, rank))
        for each in stuck[1:]
    )
    return Stand(
        cause="dataloader-stuck",
        at=at,
        doing=doing,
        because=(
            AwaitsBatch(current_where(rank)),
            WorkersStuck(len(stuck), total, worker.pid, at),
            *movement(worker),
            *movement(rank),
        ),
        fix=(*_advice(worker, doing), Advice("loader-timeout"), Advice("fork-safely")),
        alternatives=(Possibility("blocked-call", "possible", WorkerStuck(rank.rank, at, doing)),),
        summary=WorkerStuck(rank.rank, at, doing),
        process="dataloader-worker",
        pid=worker.pid,
        others=others,
        references=("pytorch/pytorch#1355", "pytorch/pytorch#45198"),
    )


def _advice(worker: ChildProcess, doing: Fact) -> tuple[Advice, ...]:
    if isinstance(doing, Frozen) and doing.stopped:
        return (Advice("continue-process", pid=worker.pid), Advice("who-stops-it"))
    if isinstance(doing, Outside):
        return advice_for(doing)
    return (Advice("worker-time-limit"),)


def _place(worker: ChildProcess) -> Where | None:
    frames = own_frames(worker)
    return where(innermost_user_frame(frames)) if frames is not None else None


def _doing(worker: ChildProcess, evidence: Evidence, rank: RankEvidence) -> Fact:
    frames = own_frames(worker) or ()
    newest = worker.processes[-1] if worker.processes else None
    frozen = frozen_state(worker.processes)
    if frozen is not None:
        return frozen
    if newest is not None and newest.waits_for_lock is not None:
        return AwaitsFileLock(newest.waits_for_lock.path, newest.waits_for_lock.kind)
    outside = outside_of(newest, rank.environment) if newest is not None else None
    if outside is not None:
        return changed(outside, call=library_call(frames))
    if in_lock(frames, newest, evidence):
        return AwaitsLock()
    return StandsIn(call=library_call(frames), syscall=newest.syscall.name if newest and newest.syscall else None)


def _nobody(rank: RankEvidence, workers: tuple[ChildProcess, ...], declared: int) -> Stand:
    at = current_where(rank)
    nobody = NobodyPrepares(max(declared, len(workers)), len(workers))
    return Stand(
        cause="dataloader-stuck",
        at=at,
        doing=nobody,
        because=(nobody, AwaitsBatch(at), *movement(rank)),
        fix=(Advice("dead-worker"), Advice("lost-hand-over"), Advice("loader-timeout")),
        alternatives=(Possibility("blocked-call", "possible", NotRuledOut("loader-threads")),),
        references=("pytorch/pytorch#1355",),
    )
