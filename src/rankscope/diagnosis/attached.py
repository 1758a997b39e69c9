"""What may be concluded from one short look at a job whose past nobody recorded."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.device import stands_in_device_wait
from rankscope.diagnosis.facts.nothing_found import (
    EndedMeanwhile,
    LauncherAlone,
    Looked,
    NoRank,
    NoRankFound,
    NoRankVariable,
)
from rankscope.diagnosis.finding import Possibility, Ruling
from rankscope.diagnosis.nothing_found import as_seen, could_not_read, unknown
from rankscope.diagnosis.rules.standing.stand import movement
from rankscope.evidence.model import Evidence, RankEvidence

_SHORT_OF_IT = 0.8
"""Samples take time themselves: a rank that was still for that share of the look was still all the time."""


def with_stillness(evidence: Evidence, watched_s: float) -> Evidence:
    """How long each rank has been still is what was watched; a rank that did not move all the time stands."""
    ranks = tuple(replace(seen, still_for_s=_still_for(seen)) for seen in evidence.ranks)
    return replace(evidence, ranks=ranks, stall_after_s=watched_s * _SHORT_OF_IT)


def _still_for(seen: RankEvidence) -> float | None:
    times = [sample.at for sample in seen.processes]
    if len(times) < 2:
        return None
    # Whoever waits for a GPU uses the processor, and stands all the same.
    return 0.0 if views.moving(seen) and not stands_in_device_wait(seen) else times[-1] - times[0]


def as_watched(ruling: Ruling, evidence: Evidence) -> Ruling:
    """Where nothing is wrong, what was seen of each rank: a short look at a job proves no more than that. `ok` where
    every rank went on meanwhile; where one stood still, could not be read or ended, nobody can tell."""
    if ruling.outcome != "ok":
        return ruling
    ended = tuple(seen.rank for seen in evidence.ranks if not views.alive(seen))
    if ended or not evidence.ranks:
        return unknown(ruling, EndedMeanwhile(ended), (), (Advice("exit-code-of-launcher"), Advice("give-logs")))
    return as_seen(ruling, evidence)


def as_no_rank(ruling: Ruling, evidence: Evidence, command: str) -> Ruling:
    """Of processes that nothing shows to be ranks, whatever they do. What a rule made of them stays an alternative."""
    pids = tuple(seen.pid for seen in evidence.ranks)
    looked = tuple(Looked(seen.rank, views.current_where(seen), movement(seen)) for seen in evidence.ranks[:4])
    unread = could_not_read(list(evidence.ranks), evidence)
    because = (NoRankVariable(pids), *((unread,) if unread is not None else looked))
    others = (Possibility(ruling.cause, "possible", ruling.summary),) if ruling.cause is not None else ()
    steps = (Advice("give-ranks-by-pid"), Advice("run-with-rankscope"))
    return unknown(ruling, NoRank(pids, command), because, steps, others)


def no_rank(pids: tuple[int, ...], command: str, *, launcher: bool) -> Ruling:
    """Of processes that were given by their pids and cannot be ranks: nothing to look at."""
    what = LauncherAlone(pids[0], command) if launcher else NoRank(pids, command)
    steps = (Advice("try-again-soon"),) if launcher else (Advice("give-ranks-by-pid"),)
    return unknown(Ruling(outcome="unknown", cause=None, certainty="possible", summary=what), what, (), steps)


def nobody_found() -> Ruling:
    """No rank was there to be looked at."""
    blank = Ruling(outcome="unknown", cause=None, certainty="possible", summary=NoRankFound())
    return unknown(blank, NoRankFound(), (), (Advice("give-ranks-by-pid"), Advice("attach-as-its-user")))
