"""What is not seen where torch's flight recorder keeps nothing, as that of torch 2.9 with Gloo."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.evidence.model import Call, RankEvidence

WHAT = "calls that torch makes in C++"
_MAKE_COLLECTIVES = frozenset({"_broadcast_coalesced", "_verify_params_across_processes"})
"""Calls of DDP's in which C++ makes collectives."""


def unrecorded_calls(ranks: Iterable[RankEvidence]) -> dict[str, str]:
    """For `missing` of the evidence. The probe's own record has every call made from Python; DDP makes others."""
    if not any(_keeps_nothing(rank) for rank in ranks):
        return {}
    return {WHAT: "not seen, as DDP's reductions: torch's recorder keeps nothing here (torch 2.9 does so with Gloo)"}


def empty_record(rank: RankEvidence) -> bool:
    """The recorder of a living rank was read, and holds nothing: no collective of C++ could be seen."""
    return (
        rank.exit is None and rank.progress is not None and not rank.collectives and "collectives" not in rank.missing
    )


def _keeps_nothing(rank: RankEvidence) -> bool:
    """The rank came out of a collective, and its recorder has no trace of it."""
    return empty_record(rank) and rank.progress is not None and any(map(_came_out, rank.progress.calls))


def _came_out(call: Call) -> bool:
    return call.left_at is not None and not call.failed and (call.seq > 0 or call.op in _MAKE_COLLECTIVES)
