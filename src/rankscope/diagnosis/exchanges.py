"""Shares of an `all_to_all` that do not fit: a rank sends another more or fewer elements than that one expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rankscope.diagnosis.timeline import Event, Timeline
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import Call

_HABIT = 5
"""So many earlier calls from the same line with the same share before it counts as what a rank always sends."""
_SLACK_S = 5e-6


class Edge(msgspec.Struct, frozen=True):
    """One share; ranks as the world counts."""

    sender: int
    receiver: int
    sent: int
    expected: int


class Misfit(msgspec.Struct, frozen=True):
    """The first call of a group whose shares do not fit."""

    group: str
    seq: int
    """As the ranks count their own calls."""
    calls: dict[int, Call]
    edges: tuple[Edge, ...]
    odd: tuple[int, ...]
    """Who is at fault; empty where the shares do not tell."""
    habit: int = 0
    """So often those had exchanged other shares, and their partners always the same as now; 0 where it needed none."""


def find_misfits(states: Iterable[State]) -> tuple[Misfit, ...]:
    """The first misfit of each group all of whose members are known."""
    made: dict[tuple[str, tuple[int, ...]], dict[int, list[Call]]] = {}
    for state in states:
        progress = state.seen.progress if state.seen is not None else None
        calls = [call for call in progress.calls if call.sends] if progress is not None else []
        if progress is None or not calls:
            continue
        members = {group.name: tuple(group.ranks) for group in progress.groups}
        for call in calls:
            ranks = members.get(call.group, ())
            if state.rank in ranks and len(ranks) == len(call.sends):
                made.setdefault((call.group, ranks), {}).setdefault(state.rank, []).append(call)
    found = (_first(group, ranks, each) for (group, ranks), each in made.items() if len(each) == len(ranks))
    return tuple(misfit for misfit in found if misfit is not None)


def event_of(call: Call, timeline: Timeline | None) -> Event | None:
    """What torch's recorder noted of the call."""
    if timeline is None or not timeline.recorded:
        return None
    until = call.left_at if call.left_at is not None else float("inf")
    events = timeline.of(call.group).values()
    return next((e for e in events if call.entered_at - _SLACK_S <= e.at <= until + _SLACK_S), None)


def _first(group: str, ranks: Sequence[int], made: dict[int, list[Call]]) -> Misfit | None:
    by_seq = {rank: {call.seq: call for call in calls} for rank, calls in made.items()}
    common = set.intersection(*(set(calls) for calls in by_seq.values()))
    for seq in sorted(common):
        calls = {rank: by_seq[rank][seq] for rank in ranks}
        edges = tuple(_misfitting(ranks, calls))
        if edges:
            odd, habit = _odd(edges, ranks, made, seq)
            return Misfit(group, seq, calls, edges, odd, habit)
    return None


def _misfitting(ranks: Sequence[int], calls: dict[int, Call]) -> Iterable[Edge]:
    for at, sender in enumerate(ranks):
        for to, receiver in enumerate(ranks):
            sent, expected = calls[sender].sends[to], calls[receiver].receives[at]
            if sent != expected:
                yield Edge(sender, receiver, sent, expected)


def _odd(
    edges: Sequence[Edge], ranks: Sequence[int], made: dict[int, list[Call]], seq: int
) -> tuple[tuple[int, ...], int]:
    """The one rank that has a part in every misfit, unless it does as ever and its partners do not; where two ranks
    disagree, the one that had always exchanged another share with its partner, who exchanges the same as ever."""
    in_all = set.intersection(*({edge.sender, edge.receiver} for edge in edges))
    if not in_all:
        return (), 0
    changed, habit = _changed(edges, ranks, made, seq)
    if len(in_all) == 1:
        return ((), 0) if changed and not changed & in_all else (tuple(in_all), 0)
    return (tuple(changed), habit) if len(changed) == 1 else ((), 0)


def _changed(
    edges: Sequence[Edge], ranks: Sequence[int], made: dict[int, list[Call]], seq: int
) -> tuple[set[int], int]:
    """Who exchanges another share than ever before, and how often the least known of them had; nobody where a share had
    changed from call to call."""
    places = {rank: at for at, rank in enumerate(ranks)}
    changed: set[int] = set()
    least = 0
    for edge in edges:
        halves = (edge.sender, edge.receiver, edge.sent, True), (edge.receiver, edge.sender, edge.expected, False)
        for rank, partner, share, sends in halves:
            known = _habit([call for call in made[rank] if call.seq <= seq], places[partner], sends=sends)
            if known is None:
                return set(), 0
            usual, times = known
            least = min(times, least or times)
            if usual != share:
                changed.add(rank)
    return changed, least


def _habit(calls: Sequence[Call], peer: int, *, sends: bool) -> tuple[int, int] | None:
    """The share with a member in all calls before the last one of these, and how many they were; None where it
    changed, or they were few."""
    *before, last = calls
    shares = [(call.sends if sends else call.receives)[peer] for call in before if call.site == last.site]
    if len(shares) < _HABIT or len(set(shares)) > 1:
        return None
    return shares[0], len(shares)
