"""Jobs of which only files are left: logs, dumps, stacks."""

from __future__ import annotations

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.offline.fingerprints import explain_mismatch
from rankscope.diagnosis.rules.offline.logs import explain_logs
from rankscope.diagnosis.rules.offline.record_only import explain_absent


@rule("collective-mismatch")
def compared_calls(case: Case) -> Finding | None:
    """Torch itself compared the calls before they were made, and wrote down what differed."""
    return explain_mismatch(case.evidence) if case.offline else None


@rule("collective-skipped", "rank-missing", "collective-mismatch")
def not_entered(case: Case) -> Finding | None:
    """From dumps alone: who has not entered what the others wait in."""
    if case.endings.origin is not None or case.knot:
        return None
    return explain_absent(case.graph, case.evidence)


@rule("collective-skipped", "blocked-call", "slow-rank", "rank-missing", "comm-error")
def logged_signs(case: Case) -> Finding | None:
    """From logs alone: who fell silent, and what was said."""
    return explain_logs(case.evidence) if case.offline and case.endings.origin is None else None
