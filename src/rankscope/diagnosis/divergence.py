"""Where the sequences of the ranks first part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.diagnosis.timeline import POINT_TO_POINT, Event, calls_timeline
from rankscope.diagnosis.waits import State, members_of
from rankscope.evidence.model import Frame

Site = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that made the same call at the place of divergence."""

    ranks: tuple[int, ...]
    event: Event | None
    """None where they have not reached that place of the sequence."""
    site: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    group: str
    seq: int
    sides: tuple[Side, ...]
    """Largest first."""
    agreed: int
    """Collectives of the group known to have been made alike before."""


def find_divergence(group: str, states: dict[int, State]) -> Divergence | None:
    """The first place of a group's sequence from which on the ranks were no longer at the same call.

    Ranks may call from different lines and agree (a broadcast written twice, under `if` and `else`): a pair of lines
    counts as agreeing when the operations match and the ranks were back together after the same lines had met before.
    """
    members = [
        states[rank] for rank in sorted(members_of(group, states)) if rank in states and _known(states[rank], group)
    ]
    members, siteless = _comparable(members, group)
    if len(members) < 2:
        return None
    last = max(_reached(state, group) for state in members)
    first = max(_oldest(state, group) for state in members)
    place = _first_parting(group, members, first, last)
    odd = _first_odd_operation(group, members, siteless, first, last if place is None else place)
    place = odd if odd is not None else place
    if place is None:
        return None
    sides = _sides(place, group, members, siteless)
    return Divergence(group=group, seq=place, sides=sides, agreed=max(0, place - first))


def _by_calls(state: State) -> State:
    assert state.seen is not None
    return replace(state, timeline=calls_timeline(state.seen))


def _known(state: State, group: str) -> bool:
    """Its place in the group's sequence is known, be it before the first."""
    timeline = state.timeline
    if timeline is None:
        return False
    progress = state.seen.progress if state.seen is not None else None
    whole = progress is not None and (not progress.calls or progress.calls[0].index == 0)
    return bool(timeline.events.get(group)) or (whole and not timeline.newest.get(group))


def _comparable(members: list[State], group: str) -> tuple[list[State], list[State]]:
    """Recorder and probe count differently: where the recorder of one is lost, as with an ended rank, all are compared
    by what they wrote down themselves. Ranks of which no line is known agree with nobody and come second, apart."""
    if len({state.timeline.recorded for state in members if state.timeline is not None and state.timeline.newest}) > 1:
        members = [state for state in map(_by_calls, members) if _known(state, group)]
    sited = [state for state in members if _has_sites(state, group)]
    if not any(state.timeline is not None and state.timeline.events.get(group) for state in sited):
        return members, []
    return sited, [state for state in members if not _has_sites(state, group)]


def _first_odd_operation(group: str, members: list[State], siteless: list[State], first: int, last: int) -> int | None:
    """The first place, up to `last`, where a rank of which no line is known made another operation than the rest."""
    for seq in _places(group, siteless, first, last):
        usual = [event for state in members if (event := event_of(state, group, seq)) is not None]
        theirs = [event for state in siteless if (event := event_of(state, group, seq)) is not None]
        if usual and any(all(event.contradicts(other) for other in usual) for event in theirs):
            return seq
    return None


def _has_sites(state: State, group: str) -> bool:
    events = state.timeline.events.get(group, {}) if state.timeline is not None else {}
    return not events or any(event.site for event in events.values())


def _reached(state: State, group: str) -> int:
    """The first unfinished collective: what was issued after it, as to a GPU, has not taken place."""
    assert state.timeline is not None
    events = state.timeline.events.get(group, {})
    return min((seq for seq, event in events.items() if not event.done), default=max(events, default=0))


def _oldest(state: State, group: str) -> int:
    assert state.timeline is not None
    return min(state.timeline.events.get(group, {}), default=1)


def event_of(state: State, group: str, seq: int) -> Event | None:
    return None if state.timeline is None else state.timeline.at(group, seq)


def site_key(event: Event | None) -> Site:
    return () if event is None else tuple((frame.file, frame.line) for frame in event.site[:2])


def _first_parting(group: str, members: list[State], first: int, last: int) -> int | None:
    """The place from which on the ranks never again were at the same line together."""
    place: int | None = None
    parted: list[tuple[Site, ...]] = []
    meetings: set[tuple[Site, ...]] = set()
    for seq in _places(group, members, first, last):
        events = [event_of(state, group, seq) for state in members]
        if events[0] is not None and events[0].site and all(_twins(events[0], event) for event in events):
            place = None
            meetings.update(parted)
            parted.clear()
            continue
        sites = tuple(site_key(event) for event in events)
        alike = all(events) and len({event.signature() for event in events if event is not None}) == 1
        if alike and len(set(sites)) == 1:
            # Back together, or never apart; calls of which no line is known tell neither.
            if sites[0]:
                place = None
                meetings.update(parted)
                parted.clear()
            continue
        if alike and sites in meetings:
            continue
        if place is None:
            place = seq
        parted.append(sites)
    return place


def _places(group: str, members: list[State], first: int, last: int) -> list[int]:
    """Places of the sequence that somebody has a record of."""
    known: set[int] = set()
    for state in members:
        known.update(state.timeline.events.get(group, ()) if state.timeline is not None else ())
    return sorted(seq for seq in known if first <= seq <= last)


def _twins(one: Event, other: Event | None) -> bool:
    """The same call from the very same place, told cheaply: the common case among thousands of ranks."""
    return (
        other is not None
        and one.site is other.site
        and one.op == other.op
        and one.numel == other.numel
        and one.dtype == other.dtype
        and one.root == other.root
    )


def sides_at(seq: int, group: str, members: list[State]) -> tuple[Side, ...]:
    """Who made which call at that place of the group's sequence, largest side first."""
    return _sides(seq, group, members, [])


def _sides(seq: int, group: str, members: list[State], siteless: list[State]) -> tuple[Side, ...]:
    found: dict[tuple[object, ...], list[int]] = {}
    events: dict[tuple[object, ...], Event | None] = {}
    for state in members:
        event = event_of(state, group, seq)
        key = ("absent",) if event is None else (site_key(event), event.signature())
        found.setdefault(key, []).append(state.rank)
        events[key] = event
    for state in siteless:
        event = event_of(state, group, seq)
        if event is None:
            continue
        # Of a call whose line is not known, it is only known which others it cannot have been.
        alike = [key for key, other in events.items() if other is not None and not other.contradicts(event)]
        if len(alike) < 2:
            side = alike[0] if alike else ("siteless", event.signature())
            found.setdefault(side, []).append(state.rank)
            events.setdefault(side, event)
    sides = [
        Side(
            ranks=tuple(sorted(ranks)),
            event=events[key],
            site=event.site if (event := events[key]) is not None else _message_site(ranks, members),
        )
        for key, ranks in found.items()
    ]
    return tuple(sorted(sides, key=lambda side: (-len(side.ranks), side.ranks)))


def _message_site(ranks: list[int], members: list[State]) -> tuple[Frame, ...]:
    """Where ranks that have not come to the collective wait for a message instead."""
    waits = [state.wait for state in members if state.rank in ranks and state.wait is not None]
    return next((wait.site for wait in waits if wait.op in POINT_TO_POINT), ())
