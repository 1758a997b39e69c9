"""What is known of a run only when everything has ended: it completes the last verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.run import ProbeFailed, UnusedLosses
from rankscope.diagnosis.probe_failures import probe_failures
from rankscope.diagnosis.rules.numbers.stragglers import kept_waiting
from rankscope.diagnosis.verdict import Straggler, Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.pages import Heartbeat, read_heartbeat, read_page
from rankscope.held_folders import moved_to
from rankscope.launch import pairings
from rankscope.launch.environment import probe_error_file
from rankscope.launch.job import Job
from rankscope.launch.pace import Pace
from rankscope.launch.replicas import replicas_differ
from rankscope.report.conclude import annotated
from rankscope.report.progress_words import Figures, slowest

_MOST_LOSSES = 3
_MOST_STARTS = 3


def complete(verdict: Verdict, notes: Iterable[str | Fact], job: Job, pace: Pace) -> Verdict:
    """With times, exit codes, stages and stragglers, and with everything that is noted beside it."""
    codes = {end.rank: end.code for end in job.ends()}
    if job.nodes is not None:
        codes = {**verdict.exit_codes, **codes}
    beside: list[str | Fact] = list(notes)
    stragglers = _stragglers(job, pace)
    if stragglers and verdict.outcome in ("ok", "nan", "corrupt", "interrupted"):
        beside.append(kept_waiting(stragglers, [process.rank for process in job.ranks]))
    if verdict.outcome == "ok":
        beside += _unused_losses(job)
    now = moved_to(job.folder)
    if now is not None:
        job.note_problem(f"somebody has moved the run folder '{job.folder}': all of it is in '{now}'")
    beside += [*_probe_failures(job), *job.problems, *job.pump.problems]
    return replace(
        annotated(verdict, beside),
        stragglers=stragglers,
        stages=verdict.stages or job.stage_texts(),
        exit_codes=codes,
        ended_at=time.time(),
        started_at=job.started_at,
        world_size=job.world_size,
    )


def figures(job: Job) -> Figures:
    """How far the ranks of this node came, and who was the slowest."""
    beats = _heartbeats(job)
    times = {rank: beat.phases for rank, beat in beats.items() if beat.phases is not None}
    slow = slowest(times) if len(times) == len(job.ranks) else None
    return Figures(len(job.ranks), min((beat.steps for beat in beats.values()), default=0), slow=slow)


def numbers_suspected(job: Job) -> bool:
    """The pages of the ranks that have ended speak of bad numbers; a close look tells more."""
    noted = any(beat.non_finite for beat in _heartbeats(job).values())
    return noted or pairings.suspected(job.pages_of_ranks()) or replicas_differ(job.pages_of_ranks())


def _heartbeats(job: Job) -> dict[int, Heartbeat]:
    found = {}
    for rank, page in job.pages_of_ranks().items():
        try:
            found[rank] = read_heartbeat(page)
        except EvidenceError as error:
            job.note_problem(str(error))
    return found


def _stragglers(job: Job, pace: Pace) -> tuple[Straggler, ...]:
    pages = job.pages_of_ranks()
    if not pages or len(pages) < len(job.ranks):
        return ()
    try:
        return pace.of_the_run(pages)
    except EvidenceError as error:
        job.note_problem(str(error))
        return ()


def _unused_losses(job: Job) -> list[UnusedLosses]:
    """Meant, perhaps, but worth knowing."""
    return [
        UnusedLosses(rank, beat.bad_losses)
        for rank, beat in sorted(_heartbeats(job).items())
        if beat.bad_losses and not beat.non_finite
    ][:_MOST_LOSSES]


def _probe_failures(job: Job) -> list[ProbeFailed]:
    """On the ranks' pages, and of processes in which the probe did not come so far."""
    errors = {}
    for rank, page in job.pages_of_ranks().items():
        try:
            errors[rank] = read_page(page, newest_calls=0).progress.probe_errors
        except EvidenceError as error:
            job.note_problem(str(error))
    return [*probe_failures(errors), *_failed_starts(job.pages)]


def _failed_starts(pages: Path | None) -> list[ProbeFailed]:
    if pages is None:
        return []
    try:
        lines = probe_error_file(pages).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # as a rule there is no such file
    return [ProbeFailed((), line) for line in dict.fromkeys(lines)][:_MOST_STARTS]
