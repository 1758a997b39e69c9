"""Where the sequences of the ranks first part, and which side took the wrong way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.timeline import Event, calls_timeline
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
    counts as agreeing when the operations match and the same lines met before.
    """
    members = [
        states[rank]
        for rank in sorted(members_of(group, states))
        if rank in states and states[rank].timeline is not None and states[rank].timeline.events.get(group)  # type: ignore[union-attr]
    ]
    if len(members) < 2:
        return None
    if len({state.timeline.recorded for state in members if state.timeline is not None}) > 1:
        # The recorder of an ended rank is gone with it: compare what all of them wrote down themselves.
        members = [_by_calls(state) for state in members]
        members = [state for state in members if state.timeline is not None and state.timeline.events.get(group)]
        if len(members) < 2:
            return None
    last = max(_newest(state, group) for state in members)
    first = max(_oldest(state, group) for state in members)
    place: int | None = None
    for seq in range(last, first - 1, -1):
        if _agree(seq, group, members, first):
            break
        place = seq
    if place is None:
        return None
    return Divergence(group=group, seq=place, sides=_sides(place, group, members), agreed=max(0, place - first))


def _by_calls(state: State) -> State:
    assert state.seen is not None
    return replace(state, timeline=calls_timeline(state.seen))


def _newest(state: State, group: str) -> int:
    assert state.timeline is not None
    return max(state.timeline.events[group])


def _oldest(state: State, group: str) -> int:
    assert state.timeline is not None
    return min(state.timeline.events[group])


def _event(state: State, group: str, seq: int) -> Event | None:
    return None if state.timeline is None else state.timeline.at(group, seq)


def _site(event: Event | None) -> Site:
    return () if event is None else tuple((frame.file, frame.line) for frame in event.site[:2])


def _agree(seq: int, group: str, members: list[State], first: int) -> bool:
    events = [_event(state, group, seq) for state in members]
    if any(event is None for event in events):
        return False
    if len({event.signature() for event in events if event is not None}) > 1:
        return False
    sites = tuple(_site(event) for event in events)
    if len(set(sites)) == 1:
        return True
    return any(
        tuple(_site(_event(state, group, earlier)) for state in members) == sites
        for earlier in range(max(first, seq - 400), seq)
    )


def _sides(seq: int, group: str, members: list[State]) -> tuple[Side, ...]:
    found: dict[tuple[object, ...], list[int]] = {}
    events: dict[tuple[object, ...], Event | None] = {}
    for state in members:
        event = _event(state, group, seq)
        key = ("absent",) if event is None else (_site(event), event.signature())
        found.setdefault(key, []).append(state.rank)
        events[key] = event
    sides = [
        Side(
            ranks=tuple(ranks),
            event=events[key],
            site=event.site if (event := events[key]) is not None else (),
        )
        for key, ranks in found.items()
    ]
    return tuple(sorted(sides, key=lambda side: (-len(side.ranks), side.ranks)))


def blame(divergence: Divergence, states: dict[int, State], code: CodeReader) -> Blame:
    """Which side took the wrong way: by the branch its call stands under, then by number, then by habit."""
    sides = divergence.sides
    scores: dict[int, float] = {}
    reasons: dict[int, list[str]] = {}
    extra: dict[int, bool] = {}
    for index in range(len(sides)):
        scores[index], reasons[index], extra[index] = _score(index, divergence, states, code)
    order = sorted(scores, key=lambda index: -scores[index])
    if scores[order[0]] - scores[order[1]] < _DECISIVE:
        return Blame(ranks=(), extra=False, reserved=False, reasons=())
    leader = order[0]
    return Blame(
        ranks=sides[leader].ranks,
        extra=extra[leader],
        reserved=scores[leader] >= _ON_RANK,
        reasons=tuple(reasons[leader]),
    )


def _score(
    index: int, divergence: Divergence, states: dict[int, State], code: CodeReader
) -> tuple[float, list[str], bool]:
    """How much speaks for this side being the wrong one; whether it is for a call it made or for one it passed by."""
    side = divergence.sides[index]
    others = [other for number, other in enumerate(divergence.sides) if number != index]
    own, own_reasons = _for_the_call(side, others, code)
    passed, passed_reasons = _for_passing_by(others, code)
    score, reasons, extra = (own, own_reasons, True) if own >= passed else (passed, passed_reasons, False)
    if len(side.ranks) < max(len(other.ranks) for other in others):
        score += _MINORITY
        reasons = [
            *reasons,
            f"{views.ranks_text(side.ranks)} left the way that the other ranks of the group took",
        ]
    if (
        side.event is not None
        and _novel(side, divergence, states)
        and not all(_novel(o, divergence, states) for o in others)
    ):
        score += _NOVEL
    return score, reasons, extra


def _for_the_call(side: Side, others: list[Side], code: CodeReader) -> tuple[float, list[str]]:
    found = code.guard(side.site) if side.event is not None else None
    if found is None:
        return 0, []
    frame, branch = found
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


def _novel(side: Side, divergence: Divergence, states: dict[int, State]) -> bool:
    """Whether the step from the call before to this one had never been made by any rank."""
    if side.event is None:
        return False
    group, seq = divergence.group, divergence.seq
    step = (_site(_event(states[side.ranks[0]], group, seq - 1)), _site(side.event))
    habits: Counter[tuple[Site, Site]] = Counter()
    for state in states.values():
        events = state.timeline.events.get(group, {}) if state.timeline is not None else {}
        for number in range(max(min(events, default=seq), seq - 400), seq):
            if number in events and number - 1 in events:
                habits[(_site(events[number - 1]), _site(events[number]))] += 1
    return habits[step] == 0
