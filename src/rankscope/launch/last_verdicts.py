"""Verdicts on how a run ended that need no diagnosis: it went well, it was interrupted, nothing is known."""

from __future__ import annotations

import signal
from dataclasses import replace

from rankscope.diagnosis.compose import exit_codes
from rankscope.diagnosis.verdict import Alternative, Verdict
from rankscope.evidence.model import Evidence
from rankscope.launch.job import Job
from rankscope.report.conclude import SCHEMA


def interruption(verdict: Verdict, evidence: Evidence, number: int | None) -> Verdict:
    """A person or the scheduler stopped the job. What it was stuck in, if it was, is kept as the alternative."""
    seen = "" if verdict.cause is None else f" At that moment {verdict.headline}"
    alternatives = () if verdict.cause is None else (Alternative(verdict.cause, verdict.certainty, verdict.headline),)
    return replace(
        verdict,
        outcome="interrupted",
        cause=None,
        culprits=(),
        headline=f"{_stopped_by(number)}{seen}",
        alternatives=alternatives,
        exit_codes=exit_codes(evidence),
    )


def stopped_at_once(job: Job, number: int) -> Verdict:
    """Somebody did not wait for the last look."""
    verdict = well(job.world_size, _stopped_by(number))
    return replace(
        verdict, outcome="interrupted", because=("it was stopped a second time, before the last look was done",)
    )


def _stopped_by(number: int | None) -> str:
    return f"the job was stopped by {signal.Signals(number).name if number is not None else 'a signal'}."


def good(job: Job) -> Verdict:
    return well(job.world_size, f"all {job.world_size} ranks ended well.")


def undiagnosed(job: Job) -> Verdict:
    """The job ended badly and no evidence could be read: what the exit codes say, and no more."""
    failed = sorted(job.failed(), key=lambda process: process.exit.at if process.exit is not None else 0.0)
    first = failed[0] if failed else None
    code = first.exit.code if first is not None and first.exit is not None else None
    return Verdict(
        schema=SCHEMA,
        outcome="crash",
        cause="exit-code",
        certainty="possible",
        culprits=(),
        victims=(),
        headline=f"rank {first.rank} ended first, with code {code}."
        if first is not None
        else "the ranks were stopped.",
        because=("the evidence could not be read; only exit codes are known",),
        fix=("look at the output of that rank in the run's folder",),
        world_size=job.world_size,
    )


def well(world_size: int, headline: str) -> Verdict:
    """Nothing is wrong."""
    return Verdict(
        schema=SCHEMA,
        outcome="ok",
        cause=None,
        certainty="proven",
        culprits=(),
        victims=(),
        headline=headline,
        because=(),
        fix=(),
        world_size=world_size,
    )
