"""What a rule hands back: a cause with its culprits and reasons, before it becomes the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.verdict import Alternative, Certainty, Culprit, Outcome


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: Outcome
    cause: str
    certainty: Certainty
    culprits: tuple[Culprit, ...]
    summary: str
    """The headline without rank numbers of victims: `rank 2 is stuck in push_metrics (train.py:88)`."""
    because: tuple[str, ...]
    fix: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    references: tuple[str, ...] = ()
    victims: tuple[int, ...] | None = None
    """Where the rule knows better than the wait-for graph who suffered."""
    since: float | None = None
    """When it began, where the rule knows it."""
