"""The rank that the others waited for, from where each rank's time went: not the ones that waited."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.numbers import ArriveLast, KeptWaiting, WorksLonger
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.verdict import Straggler, Where
from rankscope.diagnosis.views import innermost_user_frame, main_thread, rank_culprit, where
from rankscope.evidence.model import Evidence, Phases, RankEvidence, StackSample

LEAST_LOST_S = 1.0
LEAST_SHARE = 0.05
"""Of the time, lost by the others: below it, ranks are as even as ranks are."""
RUNNING_SHARE = 0.15
"""The same of a job that is looked at while it runs."""
_SAME_TIME = 0.1
_FIXES = {
    "data": (Advice("more-loader-workers"), Advice("spread-long-samples")),
    "forward/backward": (Advice("spread-long-samples"), Advice("compare-processors")),
    "save": (Advice("save-with-all-ranks"),),
    "other": (Advice("move-work-out-of-the-step"),),
}


def find_stragglers(
    times: Mapping[int, Phases],
    *,
    least_share: float = LEAST_SHARE,
    least_lost_s: float = LEAST_LOST_S,
    places: Mapping[int, Where] | None = None,
) -> tuple[Straggler, ...]:
    """The slow ranks, fewer than half of all; empty where the ranks are even, or where too few are known."""
    if len(times) < 2:
        return ()
    waited = sorted((phases.waiting_s, rank) for rank, phases in times.items())
    slow = _below_the_gap(waited)
    others = [rank for rank in times if rank not in slow]
    usual_wait = statistics.median(times[rank].waiting_s for rank in others)
    elapsed = statistics.median(_elapsed(phases) for phases in times.values())
    if any(abs(_elapsed(phases) - elapsed) > _SAME_TIME * elapsed for phases in times.values()):
        return ()  # they were not counted over the same time
    found = []
    for rank in sorted(slow):
        lost = usual_wait - times[rank].waiting_s
        if elapsed <= 0 or lost < least_lost_s or lost < least_share * elapsed:
            return ()
        # Others that hardly waited were not kept waiting by it.
        if min(times[other].waiting_s for other in others) - times[rank].waiting_s < 0.5 * lost:
            return ()
        usual_busy = statistics.median(_busy(times[other]) for other in others)
        if _busy(times[rank]) <= usual_busy:
            return ()
        found.append(
            Straggler(
                rank=rank,
                phase=_phase(times[rank], [times[other] for other in others]),
                lost_s=round(lost, 3),
                share=round(lost / elapsed, 3),
                factor=round(_busy(times[rank]) / usual_busy, 2) if usual_busy > 0 else 1.0,
                where=(places or {}).get(rank),
            )
        )
    return tuple(found)


def kept_waiting(stragglers: Sequence[Straggler], world: Iterable[int]) -> KeptWaiting:
    """What they cost the other ranks of this world."""
    ranks = tuple(each.rank for each in stragglers)
    worst = max(stragglers, key=lambda each: each.lost_s)
    return KeptWaiting(
        ranks=ranks,
        others=tuple(rank for rank in sorted(world) if rank not in ranks),
        lost_s=worst.lost_s,
        share=worst.share,
        factor=worst.factor,
        phase=worst.phase,
        where=worst.where,
    )


def as_finding(stragglers: tuple[Straggler, ...], evidence: Evidence) -> Finding:
    """The verdict on a job that runs and is slow."""
    seen = {rank.rank: rank for rank in evidence.ranks}
    summary = kept_waiting(stragglers, seen)
    return Finding(
        outcome="slow",
        cause="slow-rank",
        certainty="likely",
        culprits=tuple(
            rank_culprit(seen[each.rank], WorksLonger(each.rank, each.factor, each.phase), each.where)
            for each in stragglers
        ),
        summary=summary,
        because=(ArriveLast(summary.ranks, summary.others),),
        fix=_FIXES[summary.phase],
        victims=summary.others,
        since=evidence.collected_at,
    )


def phases_of(evidence: Evidence) -> dict[int, Phases]:
    return {
        seen.rank: seen.progress.phases
        for seen in evidence.ranks
        if seen.progress is not None and seen.progress.phases is not None
    }


def places_of(ranks: Sequence[RankEvidence]) -> dict[int, Where]:
    """Where each rank fetches its batches: the line to open when loading is what is slow."""
    found = {}
    for seen in ranks:
        loader = seen.progress.loader if seen.progress is not None else None
        at = where(loader.site[0]) if loader is not None and loader.site else None
        if at is not None:
            found[seen.rank] = at
    return found


def usual_place(samples: Sequence[StackSample]) -> Where | None:
    """The user's line on which the main thread was seen most often."""
    threads = [main_thread(sample) for sample in samples]
    places = [where(innermost_user_frame(thread.frames)) for thread in threads if thread is not None]
    counted = Counter(at for at in places if at is not None)
    return counted.most_common(1)[0][0] if counted else None


def between(before: Phases, after: Phases) -> Phases:
    """What was added between two looks."""
    return Phases(
        since=before.until,
        until=after.until,
        first_step=after.first_step,
        data_s=after.data_s - before.data_s,
        forward_s=after.forward_s - before.forward_s,
        backward_s=after.backward_s - before.backward_s,
        waiting_s=after.waiting_s - before.waiting_s,
        saving_s=after.saving_s - before.saving_s,
    )


def _below_the_gap(waited: Sequence[tuple[float, int]]) -> set[int]:
    """The ranks before the widest gap in the sorted waiting times, at most half of them."""
    most = max(1, (len(waited) - 1) // 2)
    cut = max(range(1, most + 1), key=lambda number: waited[number][0] - waited[number - 1][0])
    return {rank for _, rank in waited[:cut]}


def _elapsed(phases: Phases) -> float:
    return phases.until - phases.since


def _busy(phases: Phases) -> float:
    return max(0.0, _elapsed(phases) - phases.waiting_s)


def _phase(slow: Phases, others: Sequence[Phases]) -> str:
    parts = [_parts(phases) for phases in others]
    excess = {name: seconds - statistics.median(part[name] for part in parts) for name, seconds in _parts(slow).items()}
    return max(excess, key=lambda name: excess[name])


def _parts(phases: Phases) -> dict[str, float]:
    known = {
        "data": phases.data_s,
        "forward/backward": phases.forward_s + phases.backward_s,
        "save": phases.saving_s,
    }
    return {**known, "other": max(0.0, _busy(phases) - sum(known.values()))}
