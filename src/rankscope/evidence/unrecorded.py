"""What is not seen where torch's flight recorder keeps nothing, as that of torch 2.9 with Gloo."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.evidence.model import RankEvidence

WHAT = "calls that torch makes in C++"


def unrecorded_calls(ranks: Iterable[RankEvidence]) -> dict[str, str]:
    """For `missing` of the evidence. The probe's own record has every call made from Python; DDP makes others."""
    if not any(keeps_nothing(rank) for rank in ranks):
        return {}
    return {WHAT: "not seen, as DDP's reductions: torch's recorder keeps nothing here (torch 2.9 does so with Gloo)"}


def keeps_nothing(rank: RankEvidence) -> bool:
    """The rank came out of a collective, its recorder was read, and there is no trace of it."""
    if rank.exit is not None or rank.progress is None or rank.collectives or "collectives" in rank.missing:
        return False
    return any(call.seq > 0 and call.left_at is not None and not call.failed for call in rank.progress.calls)
