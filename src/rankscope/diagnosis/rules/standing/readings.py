"""Explains a living rank that does not wait for other ranks: what it does instead decides the cause.

Whether it hangs is a matter of stillness alone: a rank that others wait for and that does not move past the threshold
is a likely hang, whatever it stands in. The readings below only say more about it than `stalled` does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.facts.standing import AtStage, Does, InSyscall, NotSeen, StandsIn
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.standing.children import awaited_child, queue_wait
from rankscope.diagnosis.rules.standing.endless import endless_loop
from rankscope.diagnosis.rules.standing.frames import innermost_call, library_call, native_function
from rankscope.diagnosis.rules.standing.frozen import frozen, gil_held
from rankscope.diagnosis.rules.standing.gpu import gpu_stuck, waits_for_busy_gpu
from rankscope.diagnosis.rules.standing.life import lines_changed, little_work
from rankscope.diagnosis.rules.standing.loader import loader_stuck
from rankscope.diagnosis.rules.standing.locks import database_lock, file_lock, lock_file, polls_lock_file, process_lock
from rankscope.diagnosis.rules.standing.named_call import named_call
from rankscope.diagnosis.rules.standing.outside import blocked_call
from rankscope.diagnosis.rules.standing.polling import polled_loop, polls
from rankscope.diagnosis.rules.standing.slow import at_work
from rankscope.diagnosis.rules.standing.stand import PLACE, Stand, busy, finding_of, movement
from rankscope.diagnosis.rules.standing.threads import joined_thread, thread_alive
from rankscope.diagnosis.views import current_where, moving, newest_main_thread
from rankscope.evidence.model import Evidence, RankEvidence


def explain_standing(rank: RankEvidence, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """What a living rank that waits for no other rank does while `waiters` wait for it."""
    return finding_of(_stand(rank, evidence), rank, evidence, waiters)


def _stand(rank: RankEvidence, evidence: Evidence) -> Stand:
    # These tell life from death by other signs than the rank's own.
    held = (frozen(rank), loader_stuck(rank, evidence), thread_alive(rank, evidence))
    first = next((stand for stand in held if stand is not None), None)
    if first is not None:
        return first
    waits = gpu_stuck(rank, evidence)
    if waits is not None:
        # A loop of small kernels that reads each result leaves no trace in the GPU's counters.
        return waits if waits.certainty is not None else endless_loop(rank, evidence) or waits
    if works(rank, evidence):
        return endless_loop(rank, evidence) or at_work(rank, evidence)
    return _of_still(rank, evidence)


def works(rank: RankEvidence, evidence: Evidence) -> bool:
    """Signs of life, in this look and in those before it. A loop that only tests and sleeps changes its line without
    getting anywhere: it lives by its processor time alone."""
    thread = newest_main_thread(rank)
    if thread is not None and (polls_lock_file(thread.frames) or polled_loop(rank, evidence) is not None):
        return busy(rank)
    alive = moving(rank) or lines_changed(rank) or little_work(rank) is not None
    return alive or waits_for_busy_gpu(rank, evidence)


def _of_still(rank: RankEvidence, evidence: Evidence) -> Stand:
    """All readings are asked; the one that explains most of the wait is right, then the more special cause."""
    stands = (reading.read(rank, evidence) for reading in READINGS)
    return max(
        (stand for stand in stands if stand is not None),
        key=lambda stand: (stand.explains, CAUSES[stand.cause].special),
    )


def stalled(rank: RankEvidence) -> Stand:
    """Always an answer: where it stands, by the user's line, the library's innermost function, the native function and
    the system call, each as far as it was seen."""
    at = current_where(rank)
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    newest = rank.processes[-1] if rank.processes else None
    call = newest.syscall if newest is not None else None
    called, inner = library_call(frames), innermost_call(frames)
    stands = StandsIn(
        where=at,
        call=called,
        innermost=inner if inner != called else None,
        native=native_function(rank.stacks, thread.tid) if thread is not None else None,
        syscall=call.name if call is not None else None,
    )
    noted = rank.progress
    return Stand(
        cause="stalled",
        at=at,
        doing=stands,
        because=(
            *movement(rank),
            *((InSyscall(call.name, call.target or ""),) if call is not None else ()),
            *((AtStage(noted.stage, noted.steps),) if noted is not None and noted.stage else ()),
            *(NotSeen(what, why) for what, why in sorted(rank.missing.items())),
        ),
        fix=(Advice("time-limit-there"), Advice("native-stacks", pid=rank.pid)),
        summary=Does(rank.rank, stands),
        explains=PLACE,
    )


class Reading(msgspec.Struct, frozen=True):
    """What a rank that does not move may be waiting for; `read` says nothing where the evidence does not show it."""

    causes: tuple[str, ...]
    read: Callable[[RankEvidence, Evidence], Stand | None]


READINGS = (
    Reading(("gil-held",), lambda rank, _: gil_held(rank)),
    Reading(("lock-wait", "blocked-call"), joined_thread),
    Reading(("blocked-call",), lambda rank, _: awaited_child(rank)),
    Reading(("blocked-call",), lambda rank, _: named_call(rank)),
    Reading(("lock-wait",), file_lock),
    Reading(("lock-wait",), lambda rank, _: lock_file(rank)),
    Reading(("lock-wait",), database_lock),
    Reading(("lock-wait", "blocked-call"), polls),
    Reading(("blocked-call",), lambda rank, _: queue_wait(rank)),
    Reading(("lock-wait",), process_lock),
    Reading(("blocked-call",), lambda rank, _: blocked_call(rank)),
    Reading(("stalled",), lambda rank, _: stalled(rank)),
)
