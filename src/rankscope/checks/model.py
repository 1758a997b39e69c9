"""What a check says: steps, each with its verdict, time and advice. Plain values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that would keep a job from training, named as the verdict of that job would name it."""

    cause: str
    """One id of the verdict's causes."""
    what: str
    """One sentence with the number and the name in it."""
    fix: str
    host: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What a step found, before it is timed."""

    flaws: tuple[Flaw, ...] = ()
    facts: tuple[str, ...] = ()
    """What was looked at and is well, one short line each."""
    skipped: str | None = None
    """Why nothing could be tried."""


@dataclass(frozen=True, slots=True)
class StepResult:
    step: str
    status: Status
    seconds: float
    flaws: tuple[Flaw, ...] = ()
    facts: tuple[str, ...] = ()
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    schema: int
    host: str
    ok: bool
    """True only when every step that was run passed."""
    steps: tuple[StepResult, ...]
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)


def result(step: str, findings: Findings, seconds: float) -> StepResult:
    status: Status = "fail" if findings.flaws else "skip" if findings.skipped is not None else "pass"
    return StepResult(step, status, round(seconds, 2), findings.flaws, findings.facts, findings.skipped)


def joined(parts: Iterable[Findings]) -> Findings:
    """Several looks of one step as one; skipped only when all of them were."""
    known = list(parts)
    reasons = [part.skipped for part in known if part.skipped is not None]
    return Findings(
        flaws=tuple(flaw for part in known for flaw in part.flaws),
        facts=tuple(fact for part in known for fact in part.facts),
        skipped="; ".join(reasons) if known and len(reasons) == len(known) else None,
    )
