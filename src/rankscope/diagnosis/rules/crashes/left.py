"""A rank that ended well, with code 0, while other ranks still needed it."""

from __future__ import annotations

from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.views import place, rank_culprit, ranks_text, where
from rankscope.evidence.model import Evidence, RankEvidence

_LEFT_FIX = (
    "decide together when to stop (early stopping, preemption, errors): all_reduce the flag",
    "end every rank with the same calls; dist.destroy_process_group() comes last",
)
_UNEVEN_FIX = (
    "give every rank the same number of batches: DistributedSampler, drop_last=True, or a fixed number of steps",
    "or train in `with Join([model]):` (torch.distributed.algorithms.join)",
)
_MISSING_FIX = ("let every rank of the world call init_process_group, or start fewer ranks",)


def explain_left(rank: RankEvidence, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """Why others miss a rank that ended with code 0: out of data, never joined, or simply gone."""
    failed = any(
        other.exit is not None and other.exit.code != 0 and not other.exit.by_launcher for other in evidence.ranks
    )
    at = _place_of_leaving(rank)
    steps = rank.progress.steps if rank.progress is not None else None
    doing = "exited with code 0" + (f" after step {steps}" if steps is not None else "")
    others = tuple(number for number in waiters if number != rank.rank)
    waiting = (f"{ranks_text(others)} still needed it",) if others else ()
    signals = rank.progress.signals if rank.progress is not None else ()
    handled = (f"its program had handled {', '.join(signals)} before",) if signals else ()
    cause, certainty, facts, fix = _cause(rank, evidence)
    summary = f"rank {rank.rank} {doing}" + (f", last seen in {place(at)}" if at is not None else "")
    return Finding(
        outcome="crash" if failed else "hang",
        cause=cause,
        certainty=certainty,
        culprits=(rank_culprit(rank, doing, at),),
        summary=f"{summary}: it ran out of data before the others" if cause == "uneven-data" else summary,
        because=(f"rank {rank.rank} {doing}; the launcher had not stopped it", *facts, *handled, *waiting),
        fix=fix,
        alternatives=()
        if cause == "rank-left"
        else (Possibility("rank-left", "possible", "it ended while others still needed it"),),
    )


def _cause(rank: RankEvidence, evidence: Evidence) -> tuple[str, Certainty, tuple[str, ...], tuple[str, ...]]:
    progress = rank.progress
    others = [other for other in evidence.ranks if other.rank != rank.rank and other.progress is not None]
    if progress is not None and progress.declared_world == 0:
        joined = [other.rank for other in others if other.progress is not None and other.progress.declared_world > 0]
        if joined:
            fact = f"it never called init_process_group; {ranks_text(joined)} did"
            return "rank-missing", "proven", (fact,), _MISSING_FIX
    loader = progress.loader if progress is not None else None
    if loader is not None and loader.exhausted:
        for other in others:
            theirs = other.progress.loader if other.progress is not None else None
            if theirs is None or theirs.number != loader.number:
                continue
            fact = (
                f"its data loader ended after {loader.batches} batches; rank {other.rank}'s had given {theirs.batches}"
            )
            if theirs.batches > loader.batches:
                return "uneven-data", "proven", (fact,), _UNEVEN_FIX
            if theirs.batches == loader.batches and not theirs.exhausted:
                return "uneven-data", "likely", (f"{fact} and was not at its end",), _UNEVEN_FIX
    return "rank-left", "proven", (), _LEFT_FIX


def _place_of_leaving(rank: RankEvidence) -> Where | None:
    progress = rank.progress
    if progress is None:
        return None
    if progress.exit_site:
        return where(progress.exit_site[0])
    sites = [call.site[0] for call in progress.calls if call.site]
    return where(sites[-1]) if sites else None
