"""Who waits for whom right now, from the ranks' own notes alone: no stacks, no proof, and no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankscope.evidence.model import Call, Progress

LEAST_S = 0.5
"""A call that took less is on its way: pages are read one after another, and a job goes on meanwhile."""
_TO_A_PEER = frozenset({"send", "recv", "isend", "irecv"})


def open_call(progress: Progress) -> Call | None:
    """The outermost call that the rank is in."""
    inside = [call for call in progress.calls if call.left_at is None]
    return min(inside, key=lambda call: (call.depth, call.index), default=None)


def who_waits(ranks: Mapping[int, Progress], now: float) -> dict[int, frozenset[int]]:
    """Rank → those that have not come to the call it is in; only of ranks that have been in it for a while."""
    found = {}
    for rank, progress in ranks.items():
        call = open_call(progress)
        if call is None or now - call.entered_at < LEAST_S:
            continue
        awaited = {other for other in _partners(call, progress, ranks) - {rank} if not _came(ranks[other], call)}
        if awaited:
            found[rank] = frozenset(awaited)
    return found


def _partners(call: Call, progress: Progress, ranks: Iterable[int]) -> set[int]:
    known = set(ranks)
    if call.op in _TO_A_PEER:
        return known & {call.peer}
    members = next((group.ranks for group in progress.groups if call.group and group.name == call.group), ())
    return known & set(members) if members else known


def _came(other: Progress, call: Call) -> bool:
    """By the group's count of collectives, or by the step for a call that has none: the backward pass."""
    alike = [its for its in other.calls if (its.op, its.group) == (call.op, call.group)]
    if call.op in _TO_A_PEER:
        return open_call(other) is not None
    if call.seq:
        return any(its.seq >= call.seq for its in other.calls if its.group == call.group)
    return other.steps > call.step or any(its.step >= call.step for its in alike)
