"""Ranks that took different ways: skipped, extra and mismatched calls, uneven data, crossed groups and messages."""

from __future__ import annotations

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.divergence.deadlock import explain_deadlock
from rankscope.diagnosis.rules.divergence.ended_apart import explain_skipped_before_end
from rankscope.diagnosis.rules.divergence.misfit import explain_misfit
from rankscope.diagnosis.rules.divergence.paired import explain_paired_call
from rankscope.diagnosis.rules.divergence.wrong_pairing import explain_wrong_pairing, stuck_since


@rule("collective-skipped", "collective-mismatch", "group-order-cycle", "uneven-data")
def deadlock(case: Case) -> Finding | None:
    """Ranks that wait for one another and can never go on."""
    if not case.knot or case.endings.origin is not None or case.left:
        return None
    found = explain_deadlock(case.graph, case.evidence)
    if found.cause not in ("collective-skipped", "collective-mismatch", "uneven-data"):
        return found
    return stuck_since(explain_wrong_pairing(case), found, case)


@rule("collective-skipped")
def skipped_before_end(case: Case) -> Finding | None:
    """A rank that ended well had skipped a call on its way."""
    if case.endings.origin is not None:
        return None
    found = [explain_skipped_before_end(seen, case.evidence, case.graph) for seen in case.left]
    known = [finding for finding in found if finding is not None]
    return known[0] if len(known) == 1 else None


@rule("collective-skipped")
def paired_with_another(case: Case) -> Finding | None:
    """An extra call that met a later one of the others, who now wait for a rank that has ended."""
    if not case.left or case.endings.origin is not None:
        return None
    return explain_paired_call(case.graph, case.evidence, "proven")


@rule("collective-skipped", "collective-mismatch", "uneven-data")
def wrong_pairing(case: Case) -> Finding | None:
    """Calls that do not belong together were paired, and the job went on."""
    return explain_wrong_pairing(case)


@rule("collective-mismatch")
def shares_misfit(case: Case) -> Finding | None:
    """What a rank sends in an exchange among all is not what the receiver expects."""
    return explain_misfit(case)
