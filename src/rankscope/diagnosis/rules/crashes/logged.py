"""A rank that nobody saw end: its log only ends with a traceback."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis.facts.endings import EndedWith, LogEndsWithTraceback
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.verdict import Certainty
from rankscope.evidence.model import Evidence, RankEvidence


def as_logged(finding: Finding, evidence: Evidence) -> Finding:
    """Where nobody saw the rank end, and its log only ends with a traceback, that is what is said."""
    logged = {seen.rank for seen in evidence.ranks if _ends_with_traceback(seen)}
    if not logged & {culprit.rank for culprit in finding.culprits}:
        return finding
    reasons = (
        LogEndsWithTraceback(fact.rank) if isinstance(fact, EndedWith) and fact.rank in logged else fact
        for fact in finding.because
    )
    certainty: Certainty = "likely" if finding.certainty == "proven" else finding.certainty
    return replace(finding, because=tuple(reasons), certainty=certainty)


def _ends_with_traceback(seen: RankEvidence) -> bool:
    return seen.pid == 0 and seen.log is not None and all(error.source == "output" for error in seen.exceptions)
