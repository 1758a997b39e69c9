"""Calls of a group that were paired and do not belong together, in a job that goes on: NCCL takes what it gets.

Only what every rank surely recorded is compared: the part of a group's sequence that all of its members have made.
Ranks may make one call from different lines. That alone is no difference; three things are:

- `contradiction`: other operations, sizes, types, roots or a matrix the other way round at the same place;
- `shift`: from one call on the lines, or the steps, no longer agree place by place, but do again so many calls apart;
- `doubt`: a call from a line to which nobody had gone from the call before. Source and rhythm tell what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.divergence import Divergence, Side, Site
from rankscope.diagnosis.out_of_step import find_out_of_step
from rankscope.diagnosis.sequences import Item, Parting, agreed_length, align
from rankscope.diagnosis.timeline import Event, Timeline, calls_timeline
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import RankEvidence

Kind = Literal["contradiction", "shift", "doubt"]

_TWINS = {
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_single", "_all_gather_base"), "all_gather"),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"), "reduce_scatter"),
}
"""The same operation under another name: ranks may mix the two."""
_AGREED_BEFORE = 6
"""So many calls from equal lines show that the ranks go the same way."""
_AGREE_AFTER = 8
"""So many that agree again, some calls apart, show that they are out of step."""
_DIFFER_AFTER = 3
"""So many of these, at least, do not agree place by place."""
_FAR_BACK = 400
"""So many calls before the place are looked at."""


class Desync(msgspec.Struct, frozen=True):
    kind: Kind
    divergence: Divergence
    """The first place."""
    contradiction: tuple[Event, Event] | None = None
    """Two calls that were paired and can never match, there or later."""
    either: bool = False
    """The sequences go on as well with a call more on the one side as with one fewer."""


def groups_of(states: Iterable[State]) -> tuple[str, ...]:
    names = {name for state in states if state.timeline is not None for name in state.timeline.events}
    return tuple(sorted(name for name in names if name))


def find_desync(group: str, states: dict[int, State]) -> Desync | None:
    """The first wrong pairing in a group's sequence, as far as all members have come; None where there is none. Ranks
    whose groups only share the name are not compared with each other."""
    for members in _alike(group, states):
        found = _Compared(group, members).first()
        if found is not None:
            return found
        shifted = find_out_of_step(group, members)
        if shifted is not None:
            return Desync("shift" if shifted.sure else "doubt", shifted.divergence)
    return None


def went_past(desync: Desync, states: dict[int, State]) -> bool:
    """On two sides at least, ranks have completed the pairing and gone on to a later call of the group, or ended well.
    Where they have not, the job hangs, and that is another matter."""
    divergence, pair = desync.divergence, desync.contradiction
    seq = divergence.seq if pair is None else max(divergence.seq, pair[0].seq)
    sides = sum(any(_is_past(states[rank], divergence.group, seq) for rank in side.ranks) for side in divergence.sides)
    return sides > 1 and (pair is None or all(event.done for event in pair))


def is_young(desync: Desync, states: dict[int, State]) -> bool:
    """Whether too few calls have followed a doubtful one to show that the ranks are out of step since."""
    group, seq = desync.divergence.group, desync.divergence.seq
    timelines = [states[rank].timeline for side in desync.divergence.sides for rank in side.ranks]
    last = min(timeline.newest.get(group, 0) for timeline in timelines if timeline is not None)
    return desync.kind == "doubt" and last <= seq + _AGREE_AFTER


def _is_past(state: State, group: str, seq: int) -> bool:
    timeline = state.timeline
    event = timeline.at(group, seq) if timeline is not None else None
    if timeline is None or event is None or not event.done:
        return False
    ended = state.seen is not None and state.seen.exit is not None and state.seen.exit.code == 0
    return ended or bool(timeline.after(group, seq))


def paired(event: Event, other: Event) -> bool:
    """Whether the two may be one collective."""
    if event.op != other.op:
        return _TWINS.get(event.op, event.op) == _TWINS.get(other.op, other.op)
    return not event.contradicts(other)


def _alike(group: str, states: dict[int, State]) -> list[list[State]]:
    """The ranks that have made calls of the group, by its members as they know them. Recorder and probe count
    differently and are not mixed."""
    found: dict[tuple[int, ...], list[State]] = {}
    for state in states.values():
        members = None if state.seen is None else _members(group, state.seen)
        if members is not None and state.timeline is not None and state.timeline.events.get(group):
            found.setdefault(members, []).append(state)
    alike = []
    for each in found.values():
        if len({state.timeline.recorded for state in each if state.timeline is not None}) > 1:
            continue
        counted = each if all(_in_order(state, group) for state in each) else _by_calls(each, group)
        if len(counted) > 1:
            alike.append(counted)
    return alike


def _in_order(state: State, group: str) -> bool:
    """Torch counts anew in a group that was destroyed and made again: its record then holds calls of both."""
    events = state.of(group)
    times = [events.entered_at(seq) for seq in sorted(events)]
    return all(one <= two for one, two in pairwise(times))


def _by_calls(states: Sequence[State], group: str) -> list[State]:
    """The same ranks by what they wrote down themselves, where that is in order."""
    made = [replace(state, timeline=calls_timeline(state.seen)) for state in states if state.seen is not None]
    known = [state for state in made if state.timeline is not None and state.timeline.events.get(group)]
    return known if len(known) == len(states) and all(_in_order(state, group) for state in known) else []


def _members(group: str, seen: RankEvidence) -> tuple[int, ...] | None:
    known = (*(seen.progress.groups if seen.progress is not None else ()), *seen.groups)
    named = next((each.ranks for each in known if each.name == group and each.ranks), None)
    return None if named is None or seen.rank not in named else tuple(sorted(named))


class _Compared:
    def __init__(self, group: str, members: Sequence[State]) -> None:
        self._group = group
        events = {state.rank: state.timeline.events[group] for state in members if isinstance(state.timeline, Timeline)}
        self._events = events
        self._first = max(min(each) for each in events.values())
        self._last = min(max(each) for each in events.values())
        self._paths: dict[int, tuple[object, Site]] = {}
        self._agreed = self._first
        """Up to this call all ranks made the same ones, from the same lines."""

    def first(self) -> Desync | None:
        if self._last < self._first:
            return None
        items = {rank: self._items(rank) for rank in self._events}
        self._agreed = self._first + min(agreed_length(items.values()), self._equal_shapes())
        against = self._contradiction()
        parting = align(items)
        if against is not None and not all(event.done for event in against[1]) and self._shifted(parting):
            against = None  # the ranks stand in it now, and were out of step before
        if against is not None:
            at, pair = against
            place = self._first + parting.at if parting is not None else at
            if parting is None or place > at or any(each.absent for each in parting.classes):
                return Desync("contradiction", self._parted_at(at), pair)
            return Desync("contradiction", self._divergence(parting), pair, self._either(parting))
        if parting is not None and self._shifted(parting):
            return Desync("shift", self._divergence(parting), either=self._either(parting))
        doubt = self._doubt()
        return None if doubt is None else Desync("doubt", doubt)

    def _equal_shapes(self) -> int:
        """So many calls, from the first one on, reduce what has the same shape on all ranks."""
        known = ([() if e is None else e.shape for e in self._alike(rank)] for rank in self._events)
        first = next(known)
        return agreed_length((first, *known)) if any(first) else len(first)

    def _alike(self, rank: int) -> Iterator[Event | None]:
        return map(self._events[rank].alike, range(self._first, self._last + 1))

    def _items(self, rank: int) -> list[Item | None]:
        return [self._item(event) for event in self._alike(rank)]

    def _item(self, event: Event | None) -> Item | None:
        return None if event is None else Item(event.signature(), self._path(event), event.step)

    def _path(self, event: Event) -> Site:
        known = self._paths.get(id(event.site))
        if known is None:
            known = event.site, tuple((frame.file, frame.line) for frame in event.site)
            self._paths[id(event.site)] = known
        return known[1]

    def _contradiction(self) -> tuple[int, tuple[Event, Event]] | None:
        for seq in range(self._agreed, self._last + 1):
            alike = [event for events in self._events.values() if (event := events.alike(seq)) is not None]
            if len({(e.op, e.numel, e.dtype, e.root, e.reduces, e.shape) for e in alike}) < 2:
                continue
            made = [events[seq] for events in self._events.values() if seq in events]
            for event in made[1:]:
                if not paired(event, made[0]):
                    return seq, (made[0], event)
        return None

    def _parted_at(self, seq: int) -> Divergence:
        """The ranks by what they called there."""
        sides: list[list[int]] = []
        for rank, events in sorted(self._events.items()):
            event = events.get(seq)
            if event is None:
                continue
            alike = next((side for side in sides if paired(event, self._events[side[0]][seq])), None)
            if alike is None:
                sides.append([rank])
            else:
                alike.append(rank)
        sides.sort(key=lambda ranks: (-len(ranks), ranks[0]))
        made = tuple(self._side(tuple(ranks), seq) for ranks in sides)
        return Divergence(self._group, seq, made, seq - self._first)

    def _side(self, ranks: tuple[int, ...], seq: int) -> Side:
        events = [self._events[rank][seq] for rank in ranks if seq in self._events[rank]]
        event = next((event for event in events if event.site), events[0])
        return Side(ranks, event, event.site)

    def _divergence(self, parting: Parting) -> Divergence:
        seq = self._first + parting.at
        sides = []
        for each in parting.classes:
            event = next((e for rank in each.ranks if (e := self._events[rank].get(seq)) is not None), None)
            sides.append(Side(each.ranks, event, event.site if event is not None else (), each.kind, each.count))
        return Divergence(self._group, seq, tuple(sides), parting.at)

    def _shifted(self, parting: Parting | None) -> bool:
        """Before it the ranks had called from the same lines; after it they do again, so many calls apart, and place by
        place they do not."""
        if parting is None or len(parting.classes) != 2 or any(each.absent for each in parting.classes):
            return False
        usual, odd = parting.classes
        if odd.kind not in ("extra", "skipped"):
            return False
        at = self._first + parting.at
        one, other = usual.ranks[0], odd.ranks[0]
        before = range(max(self._first, at - _FAR_BACK), at)
        if sum(self._same(one, seq, other, seq) for seq in before) < _AGREED_BEFORE:
            return False
        window = range(at, min(at + _AGREE_AFTER, self._last + 1))
        differ = sum(not self._same(one, seq, other, seq) for seq in window)
        if differ < _DIFFER_AFTER and not self._steps_apart(one, other, before, window):
            return False
        return self._agree_after(parting, odd.kind)

    def _steps_apart(self, one: int, other: int, before: range, window: range) -> bool:
        """In a run of calls from one line the optimizer steps tell: place by place they had always agreed, and do no
        longer."""
        earlier = [self._steps_at(one, other, seq) for seq in before]
        later = [self._steps_at(one, other, seq) for seq in window]
        known = [pair for pair in earlier if min(pair) >= 0]
        return (
            len(known) >= _AGREED_BEFORE
            and all(mine == theirs for mine, theirs in known)
            and len({mine for mine, _ in known}) > 1
            and len(later) == _AGREE_AFTER
            and sum(min(pair) >= 0 and pair[0] != pair[1] for pair in later) >= _AGREE_AFTER - 1
        )

    def _steps_at(self, one: int, other: int, seq: int) -> tuple[int, int]:
        events = (self._events[one].get(seq), self._events[other].get(seq))
        mine, theirs = (-1 if event is None else event.step for event in events)
        return mine, theirs

    def _agree_after(self, parting: Parting, kind: str) -> bool:
        """From there on the ranks call from the same lines, so many calls apart."""
        usual, odd = parting.classes
        at = self._first + parting.at
        mine, theirs = (at, at + odd.count) if kind == "extra" else (at + odd.count, at)
        return all(self._same(usual.ranks[0], mine + n, odd.ranks[0], theirs + n) for n in range(_AGREE_AFTER))

    def _either(self, parting: Parting) -> bool:
        if len(parting.classes) != 2 or parting.classes[1].kind not in ("extra", "skipped"):
            return False
        return all(self._agree_after(parting, kind) for kind in ("extra", "skipped"))

    def _same(self, one: int, seq: int, other: int, other_seq: int) -> bool:
        first, second = self._events[one].get(seq), self._events[other].get(other_seq)
        if first is None or second is None or not first.site or not second.site:
            return False
        return self._path(first) == self._path(second) and first.op == second.op

    def _doubt(self) -> Divergence | None:
        """The first place at which ranks called from other lines than the rest, and nobody had gone there from the call
        before it, after many calls that agreed."""
        used, agreed, newest = self._common_way()
        before: dict[int, Site] = dict.fromkeys(self._events, newest)
        for seq in range(self._agreed, self._last + 1):
            paths: dict[Site, list[int]] = {}
            for rank, events in self._events.items():
                event = events.alike(seq)
                if event is not None and event.site:
                    paths.setdefault(self._path(event), []).append(rank)
            steps = {path: (before.get(ranks[0], ()), path) for path, ranks in paths.items()}
            if len(paths) == 2 and agreed >= _AGREED_BEFORE:
                new = [path for path in paths if steps[path] not in used]
                if len(new) == 1:
                    usual = next(path for path in paths if path not in new)
                    ranks = (tuple(sorted(paths[usual])), tuple(sorted(paths[new[0]])))
                    sides = tuple(self._side(each, seq) for each in ranks)
                    return Divergence(self._group, seq, sides, seq - self._first)
            agreed += len(paths) == 1
            used.update(steps.values())
            before = {rank: path for path, ranks in paths.items() for rank in ranks}
        return None

    def _common_way(self) -> tuple[set[tuple[Site, Site]], int, Site]:
        """Of the calls that all ranks made alike: from which line to which they went, how many lines are known, and the
        last one."""
        events = next(iter(self._events.values()))
        made = [events.alike(seq) for seq in range(self._first, self._agreed)]
        paths = [self._path(event) if event is not None and event.site else () for event in made]
        used = {(before, path) for before, path in pairwise(((), *paths)) if path}
        return used, sum(map(bool, paths)), paths[-1] if paths else ()
