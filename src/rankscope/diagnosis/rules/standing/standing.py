"""Explains a living rank that does not wait for other ranks: what it does instead decides the cause."""

from __future__ import annotations

from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.standing.frames import library_call
from rankscope.diagnosis.rules.standing.frozen import frozen, gil_held
from rankscope.diagnosis.rules.standing.gpu import gpu_stuck, waits_for_busy_gpu
from rankscope.diagnosis.rules.standing.loader import loader_stuck
from rankscope.diagnosis.rules.standing.locks import lock_wait, polls_lock_file
from rankscope.diagnosis.rules.standing.named_call import named_call
from rankscope.diagnosis.rules.standing.outside import awaited_child, blocked_call
from rankscope.diagnosis.rules.standing.slow import at_work
from rankscope.diagnosis.rules.standing.stand import Stand, busy, finding_of, movement
from rankscope.diagnosis.rules.standing.threads import joined_thread, thread_alive
from rankscope.diagnosis.views import current_where, moving, newest_main_thread, place
from rankscope.evidence.model import Evidence, RankEvidence


def explain_standing(rank: RankEvidence, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """What a living rank that waits for no other rank does while `waiters` wait for it."""
    return finding_of(_stand(rank, evidence), rank, evidence, waiters)


def _stand(rank: RankEvidence, evidence: Evidence) -> Stand:
    if (stand := frozen(rank) or loader_stuck(rank, evidence) or thread_alive(rank, evidence)) is not None:
        return stand
    if (stand := gpu_stuck(rank, evidence)) is not None:
        return stand
    if _works(rank):
        return at_work(rank, on_gpu=waits_for_busy_gpu(rank, evidence))
    return (
        gil_held(rank)
        or joined_thread(rank, evidence)
        or awaited_child(rank)
        or named_call(rank)
        or lock_wait(rank, evidence)
        or blocked_call(rank)
        or _unknown(rank)
    )


def _works(rank: RankEvidence) -> bool:
    """A loop that tries a lock file again and again changes its line without getting anywhere."""
    thread = newest_main_thread(rank)
    if thread is not None and polls_lock_file(thread.frames):
        return busy(rank)
    return moving(rank)


def _unknown(rank: RankEvidence) -> Stand:
    at = current_where(rank)
    thread = newest_main_thread(rank)
    called = library_call(thread.frames) if thread is not None else None
    doing = f"standing in {place(at)}" + (f", in {called}" if called else "")
    reasons = tuple(f"{what} could not be had: {why}" for what, why in sorted(rank.missing.items()))
    newest = rank.processes[-1] if rank.processes else None
    call = f"system call {newest.syscall.name}" if newest is not None and newest.syscall is not None else None
    stage = f"its last stage is {rank.progress.stage!r}" if rank.progress is not None and rank.progress.stage else None
    return Stand(
        cause="blocked-call",
        at=at,
        doing=doing,
        because=tuple(filter(None, (*movement(rank), call, stage, *reasons))),
        fix=(
            f"look at what {place(at)} calls, and give it a time limit",
            "native stacks say more: py-spy dump --native --pid " + str(rank.pid),
        ),
        summary=f"rank {rank.rank} is {doing}" + (" and does not move" if len(rank.stacks) != 1 else ""),
        certainty="possible",
    )
