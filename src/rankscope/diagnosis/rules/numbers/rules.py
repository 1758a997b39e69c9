"""Numbers that went bad, and ranks that keep the others waiting."""

from __future__ import annotations

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.divergence.wrong_pairing import explain_wrong_pairing
from rankscope.diagnosis.rules.numbers.non_finite import explain_non_finite
from rankscope.diagnosis.rules.numbers.replicas import explain_diverged
from rankscope.diagnosis.rules.numbers.stragglers import (
    RUNNING_SHARE,
    as_finding,
    find_stragglers,
    phases_of,
    places_of,
)
from rankscope.diagnosis.verdict import Straggler
from rankscope.evidence.model import Evidence

_RUNNING = frozenset({"request", "interrupt"})
"""Reasons to look at a job that still runs."""


@rule("nan-input", "nan-loss", "nan-gradient", "nan-parameter")
def non_finite(case: Case) -> Finding | None:
    """A value stopped being finite."""
    return explain_non_finite(case.evidence)


@rule("parameters-diverged")
def replicas_differ(case: Case) -> Finding | None:
    """Replicas that must agree no longer do; bad numbers explain that themselves, and so do wrong pairings."""
    found = explain_diverged(case.evidence) if explain_non_finite(case.evidence) is None else None
    return None if found is None or explain_wrong_pairing(case) is not None else found


@rule("slow-rank")
def keeps_others_waiting(case: Case) -> Finding | None:
    """A job that runs, and could run faster."""
    slow = stragglers_of(case.evidence)
    return as_finding(slow, case.evidence) if slow and case.evidence.trigger in _RUNNING else None


def stragglers_of(evidence: Evidence) -> tuple[Straggler, ...]:
    """The ranks that the others waited for, by where each rank's time went."""
    return find_stragglers(phases_of(evidence), least_share=RUNNING_SHARE, places=places_of(evidence.ranks))
