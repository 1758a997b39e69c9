"""What earlier looks at a job saw, carried into a newer one: one look is too short to tell a little work from none."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from rankscope.evidence.model import Evidence, RankEvidence, StackSample

_Sample = TypeVar("_Sample")
MOST_KEPT = 8
"""Samples of earlier looks that are kept of each rank: the oldest, and the newest."""


def with_earlier(evidence: Evidence, earlier: Evidence | None) -> Evidence:
    """The evidence with the samples of an earlier look, of every rank that has made no progress since."""
    if earlier is None or earlier.attempt != evidence.attempt:
        return evidence
    before = {(seen.host, seen.pid): seen for seen in earlier.ranks}
    ranks = tuple(_with_earlier(seen, before.get((seen.host, seen.pid))) for seen in evidence.ranks)
    return replace(evidence, ranks=ranks)


def _with_earlier(seen: RankEvidence, before: RankEvidence | None) -> RankEvidence:
    if before is None or seen.exit is not None:
        return seen
    since = seen.progress.changed_at if seen.progress is not None else 0.0
    stacks = (*before.earlier_stacks, *(_main_only(sample) for sample in before.stacks))
    processes = (*before.earlier_processes, *before.processes)
    return replace(
        seen,
        earlier_stacks=_kept(tuple(sample for sample in stacks if sample.at >= since)),
        earlier_processes=_kept(tuple(sample for sample in processes if sample.at >= since)),
    )


def _main_only(sample: StackSample) -> StackSample:
    return replace(sample, threads=tuple(thread for thread in sample.threads if thread.main))


def _kept(samples: tuple[_Sample, ...]) -> tuple[_Sample, ...]:
    return samples if len(samples) <= MOST_KEPT else (samples[0], *samples[1 - MOST_KEPT :])
