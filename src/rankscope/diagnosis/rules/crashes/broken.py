"""Ranks that lost their connections because of something that nobody saw."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.roots import ConnectionLost, EndedFirst
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.endings import Endings
from rankscope.evidence.model import Evidence


def explain_broken(evidence: Evidence, endings: Endings) -> Finding:
    """Every failure is a consequence, and its origin was not seen."""
    first = min(
        (seen for seen in evidence.ranks if seen.rank in endings.victims and seen.exit is not None),
        key=lambda seen: seen.exit.at if seen.exit is not None else 0.0,
    )
    message = first.exceptions[-1].message.splitlines()[0] if first.exceptions and first.exceptions[-1].message else ""
    return Finding(
        outcome="crash",
        cause="comm-error",
        certainty="possible",
        culprits=(),
        summary=ConnectionLost(tuple(endings.victims)),
        because=(EndedFirst(first.rank, message),) if message else (),
        fix=(Advice("look-at-other-hosts"),),
    )
