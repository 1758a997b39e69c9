"""What may be concluded from one short look at a job whose past nobody recorded."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.facts.roots import Watched
from rankscope.diagnosis.finding import Ruling
from rankscope.diagnosis.rules.standing.stand import movement
from rankscope.evidence.model import Evidence, RankEvidence

_MOST_SHOWN = 8
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
    return 0.0 if views.moving(seen) else times[-1] - times[0]


def as_watched(ruling: Ruling, evidence: Evidence) -> Ruling:
    """Where nothing is wrong, what was seen of each rank: a short look at a job proves no more than that."""
    if ruling.outcome != "ok":
        return ruling
    alive = [seen for seen in evidence.ranks if views.alive(seen)]
    moving = [seen.rank for seen in alive if views.moving(seen)]
    still = [seen.rank for seen in alive if not views.moving(seen)]
    parts = [f"{views.ranks_text(moving)} {views.verb(moving, 'move')}"] if moving else []
    if still:
        parts.append(f"{views.ranks_text(still)} stood still meanwhile, but nothing shows that somebody waits for them")
    because = [Watched(seen.rank, views.current_where(seen), movement(seen)) for seen in alive[:_MOST_SHOWN]]
    return replace(
        ruling,
        certainty="likely",
        summary=f"nothing wrong is seen: {', and '.join(parts)}." if parts else "no rank of the job is left.",
        because=tuple(because),
    )
