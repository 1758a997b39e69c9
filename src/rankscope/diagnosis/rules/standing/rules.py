"""Living ranks that others wait for: what they do instead of joining them."""

from __future__ import annotations

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rank_wait import recorded_only
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.standing.readings import READINGS
from rankscope.diagnosis.rules.standing.roots import explain_roots


@rule(
    *dict.fromkeys(cause for reading in READINGS for cause in reading.causes),
    *("dataloader-stuck", "frozen-process", "gpu-stuck", "thread-alive", "slow-rank", "endless-loop"),
    *("collective-skipped", "comm-error", "rank-missing"),
)
def roots(case: Case) -> Finding | None:
    """Ranks that wait for nobody while others wait for them, directly or not."""
    if case.endings.origin is not None or case.left or case.knot:
        return None
    if all(map(recorded_only, case.evidence.ranks)):
        return None  # where ranks stand that are in no collective, dumps and logs do not show
    return explain_roots(case.evidence, case.graph, case.endings)
