"""Living ranks that others wait for: what they do instead of joining them."""

from __future__ import annotations

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rank_wait import recorded_only
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.setup.nodes import waits_for_lost_machine
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
    finding = explain_roots(case.evidence, case.graph, case.endings)
    if finding is not None and finding.cause == "blocked-call":
        named = {culprit.rank for culprit in finding.culprits}
        seen = [rank for rank in case.evidence.ranks if rank.rank in named]
        if seen and all(waits_for_lost_machine(rank, case.evidence) for rank in seen):
            return None  # that call is not outside of the job: the machine at its other end is lost
    return finding
