"""Where the sequences of the ranks first part."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.roles import in_common_lines
from rankscope.diagnosis.sequences import Item, Kind, Parting, align
from rankscope.diagnosis.timeline import POINT_TO_POINT, Event, calls_timeline
from rankscope.diagnosis.wait_graph import State, members_of
from rankscope.evidence.model import Frame

Site = tuple[tuple[str, int], ...]


class Side(msgspec.Struct, frozen=True):
    """Ranks that made the same call at the place of divergence."""

    ranks: tuple[int, ...]
    event: Event | None
    """None where they have not reached that place of the sequence."""
    site: tuple[Frame, ...]
    kind: Kind | None = None
    """What they did, seen from the largest side, by how the sequences go on."""
    count: int = 0
    """How many calls more or fewer."""


_MOST_MISSING = 100_000
"""Calls that a record may lack between two that it has; damaged numbers are not counted up to."""


class Divergence(msgspec.Struct, frozen=True):
    group: str
    seq: int
    sides: tuple[Side, ...]
    """Largest first."""
    agreed: int
    """Collectives of the group known to have been made alike before."""


def find_divergence(group: str, states: dict[int, State]) -> Divergence | None:
    """The first place of a group's sequence from which on the ranks were no longer at the same call."""
    members = [
        states[rank] for rank in sorted(members_of(group, states)) if rank in states and _known(states[rank], group)
    ]
    members = _comparable(members, group)
    if len(members) < 2:
        return None
    first = max(_oldest(state, group) for state in members)
    items = _Items()
    made = {state.rank: items.of(state, group, first) for state in members}
    parting = align(made)
    until = min(_completed(state, group, first) for state in members)
    if parting is not None and parting.at < until:
        # They went on from there: perhaps only their lines differ, and always have.
        parting = align(in_common_lines(made, until))
    if parting is None:
        return None
    by_rank = {state.rank: state for state in members}
    sides = tuple(_side(parting, number, group, first, by_rank) for number in range(len(parting.classes)))
    return Divergence(group=group, seq=first + parting.at, sides=sides, agreed=parting.at)


def find_divergence_of_programs(group: str, states: dict[int, State]) -> Divergence | None:
    """The same over all calls that the members of the group made, in whatever group: in a run of equal calls of one
    group, those of other groups show where one is missing. None where a rank's record does not reach back to the start,
    or the ranks part in another group's call."""
    members = {
        rank: calls
        for rank in members_of(group, states)
        if rank in states and (calls := _whole_program(states[rank])) is not None
    }
    items = _Items()
    parting = align({rank: [items.item(event) for event in calls] for rank, calls in members.items()})
    if parting is None or all(each.kind in (None, "unclear") for each in parting.classes):
        return None
    sides = []
    for found in parting.classes:
        event = None if found.absent else members[found.ranks[0]][parting.at]
        sides.append(Side(found.ranks, event, event.site if event is not None else (), found.kind, found.count))
    made = next((side.event for side in sides if side.event is not None and side.event.group == group), None)
    if made is None or not all(any(_alike(made, event) for event in c[: parting.at]) for c in members.values()):
        return None  # a call that some ranks never make, having another part in the job
    return Divergence(group, made.seq, tuple(sides), parting.at)


def _alike(one: Event, other: Event) -> bool:
    return one.op == other.op and one.site == other.site


def _whole_program(state: State) -> list[Event] | None:
    """Every collective that the rank made from Python, in order; names of groups differ between ranks and are no part
    of what is compared."""
    progress = state.seen.progress if state.seen is not None else None
    if state.seen is None or progress is None or not progress.calls or progress.calls[0].index != 0:
        return None
    events = [event for group in calls_timeline(state.seen).events.values() for event in group.values()]
    return sorted(events, key=lambda event: event.at)


def _side(parting: Parting, number: int, group: str, first: int, states: dict[int, State]) -> Side:
    found = parting.classes[number]
    seq = first + parting.at
    events = [event for rank in found.ranks if (event := event_of(states[rank], group, seq)) is not None]
    # Of ranks that made the same call, one whose line is known speaks for all.
    event = next((event for event in events if event.site), events[0] if events else None)
    site = event.site if event is not None else _message_site(found.ranks, states)
    return Side(found.ranks, event, site, found.kind, found.count)


class _Items:
    """Events as items of a sequence; equal ones of many ranks are one object, and their places are read once."""

    def __init__(self) -> None:
        self._items: dict[Item, Item] = {}
        self._known: dict[int, tuple[Event, Item]] = {}
        self._paths: dict[int, tuple[tuple[Frame, ...], Site]] = {}

    def of(self, state: State, group: str, first: int) -> list[Item | None]:
        events = state.of(group)
        last = min(max(events, default=first - 1), first + len(events) + _MOST_MISSING)
        return [self.item(events.alike(seq)) for seq in range(first, last + 1)]

    def item(self, event: Event | None) -> Item | None:
        if event is None:
            return None
        known = self._known.get(id(event))
        if known is None:
            item = Item(event.signature(), self._path(event.site), event.step)
            known = self._known[id(event)] = event, self._items.setdefault(item, item)
        return known[1]

    def _path(self, site: tuple[Frame, ...]) -> Site:
        known = self._paths.get(id(site))
        if known is None:
            known = site, tuple((frame.file, frame.line) for frame in site)
            self._paths[id(site)] = known
        return known[1]


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


def _comparable(members: list[State], group: str) -> list[State]:
    """Recorder and probe count differently: where the recorder of one is lost, as with an ended rank, all are compared
    by what they wrote down themselves."""
    if len({state.timeline.recorded for state in members if state.timeline is not None and state.timeline.newest}) > 1:
        return [state for state in map(_by_calls, members) if _known(state, group)]
    return members


def _completed(state: State, group: str, first: int) -> int:
    """Calls of the group that the rank has completed, one after another."""
    events = state.of(group)
    seq = first
    while (event := events.alike(seq)) is not None and event.done:
        seq += 1
    return seq - first


def _oldest(state: State, group: str) -> int:
    assert state.timeline is not None
    return min(state.timeline.of(group), default=1)


def event_of(state: State, group: str, seq: int) -> Event | None:
    return None if state.timeline is None else state.timeline.at(group, seq)


def site_key(event: Event | None) -> Site:
    return () if event is None else tuple((frame.file, frame.line) for frame in event.site[:2])


def _message_site(ranks: tuple[int, ...], states: dict[int, State]) -> tuple[Frame, ...]:
    """Where ranks that have not come to the collective wait for a message instead."""
    waits = [wait for rank in ranks if (wait := states[rank].wait) is not None]
    return next((wait.site for wait in waits if wait.op in POINT_TO_POINT), ())
