"""What may be concluded from one short look at a job whose past nobody recorded."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
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
    return 0.0 if views.moving(seen) else times[-1] - times[0]
