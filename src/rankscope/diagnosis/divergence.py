"""Where the sequences of the ranks first part, and which side took the wrong way."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.timeline import POINT_TO_POINT, Event, calls_timeline
from rankscope.diagnosis.waits import State, members_of
from rankscope.evidence.model import Frame

Site = tuple[tuple[str, int], ...]

_ON_RANK = 10.0
"""The call is reserved for some ranks, or some ranks return before it: the source says who."""
_MINORITY = 4.0
_WAY_PAST = 3.0
"""A condition on data lets a rank skip the call, as `if not valid: continue` does."""
_CONDITION = 1.5
"""The call depends on a condition on data: that alone does not say which side was right."""
_NOVEL = 1.0
"""No rank had ever gone from the call before to this one."""
_HABITUAL = 3.0
"""The same, while the other side did what had been done many times."""
_HABIT = 5
_DECISIVE = 2.0
"""By how much the weightier side must lead."""


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


@dataclass(frozen=True, slots=True)
class Blame:
    ranks: tuple[int, ...]
    """Empty where the evidence does not tell the sides apart."""
    extra: bool
    """They made a call that the others did not make; otherwise they passed by one."""
    reserved: bool
    """A condition on the rank in the source decided it."""
    reasons: tuple[str, ...]


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
        usual = [event for state in members if (event := _event(state, group, seq)) is not None]
        theirs = [event for state in siteless if (event := _event(state, group, seq)) is not None]
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


def _event(state: State, group: str, seq: int) -> Event | None:
    return None if state.timeline is None else state.timeline.at(group, seq)


def _site(event: Event | None) -> Site:
    return () if event is None else tuple((frame.file, frame.line) for frame in event.site[:2])


def _first_parting(group: str, members: list[State], first: int, last: int) -> int | None:
    """The place from which on the ranks never again were at the same line together."""
    place: int | None = None
    parted: list[tuple[Site, ...]] = []
    meetings: set[tuple[Site, ...]] = set()
    for seq in _places(group, members, first, last):
        events = [_event(state, group, seq) for state in members]
        if events[0] is not None and events[0].site and all(_twins(events[0], event) for event in events):
            place = None
            meetings.update(parted)
            parted.clear()
            continue
        sites = tuple(_site(event) for event in events)
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


def _sides(seq: int, group: str, members: list[State], siteless: list[State]) -> tuple[Side, ...]:
    found: dict[tuple[object, ...], list[int]] = {}
    events: dict[tuple[object, ...], Event | None] = {}
    for state in members:
        event = _event(state, group, seq)
        key = ("absent",) if event is None else (_site(event), event.signature())
        found.setdefault(key, []).append(state.rank)
        events[key] = event
    for state in siteless:
        event = _event(state, group, seq)
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


def blame(divergence: Divergence, states: dict[int, State], code: CodeReader) -> Blame:
    """Which side took the wrong way: by the branch its call stands under, then by number, then by habit."""
    sides = divergence.sides
    scores: dict[int, float] = {}
    reasons: dict[int, list[str]] = {}
    extra: dict[int, bool] = {}
    for index in range(len(sides)):
        scores[index], reasons[index], extra[index] = _score(index, divergence, states, code)
    best = max(scores.values())
    leaders = [index for index, score in scores.items() if best - score < _DECISIVE]
    most = len(sides[0].ranks)
    if len(leaders) > 1 and (0 in leaders or 2 * most <= sum(len(side.ranks) for side in sides)):
        return Blame(ranks=(), extra=False, reserved=False, reasons=())
    # Sides of equal weight are ranks that left the common way and were then parted by something else.
    return Blame(
        ranks=tuple(sorted(rank for index in leaders for rank in sides[index].ranks)),
        extra=all(extra[index] for index in leaders),
        reserved=all(scores[index] >= _ON_RANK for index in leaders),
        reasons=tuple(reason for index in leaders for reason in reasons[index]),
    )


def _score(
    index: int, divergence: Divergence, states: dict[int, State], code: CodeReader
) -> tuple[float, list[str], bool]:
    """How much speaks for this side being the wrong one; whether it is for a call it made or for one it passed by."""
    side = divergence.sides[index]
    others = [other for number, other in enumerate(divergence.sides) if number != index]
    own, own_reasons = _for_the_call(side, others, code)
    if own <= _CONDITION and _times_made(side, divergence, states):
        own, own_reasons = 0.0, []  # the condition had let ranks make this very call before
    passed, passed_reasons = _for_passing_by(others, code)
    score, reasons, extra = (own, own_reasons, True) if own >= passed else (passed, passed_reasons, False)
    total = sum(len(each.ranks) for each in divergence.sides)
    if 2 * max(len(other.ranks) for other in others) > total:
        score += _MINORITY
        reasons = [*reasons, f"{views.ranks_text(side.ranks)} left the way that the other ranks of the group took"]
    if all(each.event is not None for each in divergence.sides) and not _times_made(side, divergence, states):
        habit = max(_times_made(other, divergence, states) for other in others)
        if habit >= _HABIT:
            text = f"the way of {views.ranks_text(side.ranks)} was new; the other had been taken {habit} times before"
            reasons = [*reasons, text]
        score += _HABITUAL if habit >= _HABIT else _NOVEL if habit else 0.0
    return score, reasons, extra and bool(own or not passed)


def _for_the_call(side: Side, others: list[Side], code: CodeReader) -> tuple[float, list[str]]:
    found = code.guard(side.site) if side.site else None
    if found is None:
        return 0, []
    frame, branch = found
    if not branch.on_rank and any(_earlier(other.event, side.event) for other in others):
        return 0, []  # the ways had parted before this condition
    shared = any(
        frame.file == other.file
        and code.around(other).function == code.around(frame).function
        and any(guard.node == branch.node and guard.side == branch.side for guard in code.around(other).guards)
        for side_ in others
        for other in side_.site
    )
    if shared:
        return 0, []
    text = f"the call stands under `if {branch.test}` ({frame.file.rsplit('/', 1)[-1]}:{branch.line})"
    if branch.side == "orelse":
        text = (
            f"the call stands in the else branch of `if {branch.test}` ({frame.file.rsplit('/', 1)[-1]}:{branch.line})"
        )
    return (_ON_RANK if branch.on_rank else _CONDITION), [text]


def _earlier(one: Event | None, other: Event | None) -> bool:
    """By steps, then by lines from the outermost function inwards."""
    if one is None or other is None or one.step < 0 or other.step < 0:
        return False
    first, second = ([frame.line for frame in reversed(event.site)] for event in (one, other))
    return (one.step, first) < (other.step, second)


def _for_passing_by(others: list[Side], code: CodeReader) -> tuple[float, list[str]]:
    best: tuple[float, list[str]] = (0, [])
    for other in others:
        found = code.way_past(other.site) if other.event is not None else None
        if found is None:
            continue
        frame, branch = found
        weight = _ON_RANK if branch.on_rank else _WAY_PAST
        # A call that is itself reserved for some ranks is no call the others should have made.
        guarded = code.guard(other.site)
        if guarded is not None and guarded[1].on_rank:
            weight = 0.0
        if weight > best[0]:
            name = frame.file.rsplit("/", 1)[-1]
            best = (
                weight,
                [f"`if {branch.test}: {branch.side}` ({name}:{branch.line}) leads past {name}:{frame.line}"],
            )
    return best


def _times_made(side: Side, divergence: Divergence, states: dict[int, State]) -> int:
    """How often the step from the call before to this one had been made, by any rank."""
    if side.event is None:
        return 0
    group, seq = divergence.group, divergence.seq
    before, here = _site(_event(states[side.ranks[0]], group, seq - 1)), _site(side.event)
    made = 0
    # Many ranks share their places: each is compared once.
    is_here: dict[int, bool] = {}
    for state in states.values():
        events = state.timeline.events.get(group, {}) if state.timeline is not None else {}
        for number in range(max(min(events, default=seq), seq - 400), seq):
            event = events.get(number)
            if event is None:
                continue
            if id(event.site) not in is_here:
                is_here[id(event.site)] = _site(event) == here
            if is_here[id(event.site)] and number - 1 in events:
                made += _site(events[number - 1]) == before
    return made
