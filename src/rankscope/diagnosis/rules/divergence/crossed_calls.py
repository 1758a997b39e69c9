"""Calls of equal operation and size that were paired: whether they mean different things, by source and rhythm."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from rankscope.diagnosis.divergence import Divergence, Side, event_of
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.timeline import Event
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import Frame

_ROUNDS = 20
"""So many of the newest rounds tell a rank's rhythm."""
_LEAST_ROUNDS = 5
_EARLY = 0.5
"""Of the shortest round: a call that comes sooner than that belongs to the same round as the one before it."""
_EARLY_IF_STEADY = 0.9
"""The same where rounds hardly vary: had the call come in place of the usual one, a whole round would lie between."""
_STEADY = 1.15
"""The median round over the shortest one, at most."""

_FAR_AHEAD = 8
"""Calls that may have been left out in a row."""
_LEAST_MET = 6
"""So often a call has met itself, and nothing else, before it is out of place elsewhere."""
_REMEMBERED = 400


def call_before(odd: Side, usual: Side, divergence: Divergence, states: dict[int, State], code: CodeReader) -> bool:
    """The odd ranks made a call on the way to the usual one, which they then made too, in the same round: one more."""
    ways = _parted_frames(odd, usual)
    if ways is None or not code.flows_on(*ways):
        return False
    for rank in odd.ranks:
        here, next_ = (event_of(states[rank], divergence.group, divergence.seq + n) for n in (0, 1))
        if here is None or next_ is None or next_.site != usual.site:
            return False
        early = _early(states[rank], divergence, usual)
        if early is None or next_.at - here.at > early:
            return False
    return True


def _parted_frames(odd: Side, usual: Side) -> tuple[Frame, Frame] | None:
    """The outermost frames on which the two ways differ."""
    for mine, theirs in zip(reversed(odd.site), reversed(usual.site), strict=False):
        if (mine.file, mine.line) != (theirs.file, theirs.line):
            return mine, theirs
    return None


def _early(state: State, divergence: Divergence, usual: Side) -> float | None:
    """Sooner after a call of the rank than this, another one is of the same round: by the rounds from usual call to
    usual call before it went another way; None where it had made too few."""
    events = state.of(divergence.group)
    before = [events.get(seq) for seq in range(max(1, divergence.seq - _ROUNDS), divergence.seq)]
    gaps = [
        two.at - one.at
        for one, two in pairwise(before)
        if one is not None and two is not None and one.site == two.site == usual.site
    ]
    if len(gaps) < _LEAST_ROUNDS:
        return None
    shortest = min(gaps)
    return shortest * (_EARLY_IF_STEADY if median(gaps) <= _STEADY * shortest else _EARLY)


def came_early(odd: Side, usual: Side, divergence: Divergence, states: dict[int, State]) -> int:
    """The odd ranks are at a call that the usual ones make so many calls later, and that had always met itself: those
    before it were left out. What follows may agree again, where another call makes up for it: it is later in the same
    step, or never met itself again. 0 where it is not so, and for barriers, which are all alike."""
    if odd.event is None or odd.event.op == "barrier":
        return 0
    others = states[usual.ranks[0]].of(divergence.group)
    step = odd.event.step
    for count in range(1, _FAR_AHEAD + 1):
        later = others.get(divergence.seq + count)
        if later is None or (step > 0 and later.step != step):
            return 0
        if later.site == odd.site:
            early = all(_moved(states[rank], others, divergence, odd, count) for rank in odd.ranks)
            return count if early else 0
    return 0


def _moved(state: State, others: Mapping[int, Event], divergence: Divergence, odd: Side, count: int) -> bool:
    events = state.of(divergence.group)
    place = divergence.seq
    then = events.get(place + count)
    if then is None or then.site == odd.site:
        return False
    before = _met(odd, events, others, range(place - _REMEMBERED, place))
    if len(before) < _LEAST_MET or not all(before):
        return False
    after = _met(odd, events, others, range(place, place + _REMEMBERED))
    return then.step > 0 or (len(after) >= _LEAST_MET and not any(after))


def _met(odd: Side, events: Mapping[int, Event], others: Mapping[int, Event], places: range) -> list[bool]:
    """Of each time that either side made the call: whether both did."""
    pairs = ((events.get(place), others.get(place)) for place in places)
    sites = ((mine.site, theirs.site) for mine, theirs in pairs if mine is not None and theirs is not None)
    return [mine == theirs for mine, theirs in sites if odd.site in (mine, theirs)]


def crossed(odd: Side, usual: Side, divergence: Divergence, states: dict[int, State], code: CodeReader) -> bool:
    """Two calls in a row came in the other order on the odd ranks: what the one made first, the other made second."""
    group, seq = divergence.group, divergence.seq
    pairs = [[event_of(states[side.ranks[0]], group, place) for place in (seq, seq + 1)] for side in (odd, usual)]
    (mine, my_next), (theirs, their_next) = pairs
    if mine is None or my_next is None or theirs is None or their_next is None:
        return False
    events = (mine, my_next, theirs, their_next)
    if len({event.step for event in events}) > 1:
        return False  # the second of them is of a later round, and nothing was made in another order
    labels = [[_line(event) for event in events], [_way(event) for event in events]]
    if code.opposite_branches(mine.site, theirs.site) and code.opposite_branches(my_next.site, their_next.site):
        labels.append([code.tensor_at(event.site[0]) for event in events])
    return any(all(each) and each[0] == each[3] and each[1] == each[2] and each[0] != each[1] for each in labels)


def swapped(divergence: Divergence, states: dict[int, State]) -> bool:
    """Two different calls in a row came in the other order on one side, and what follows them agrees again."""
    if len(divergence.sides) != 2:
        return False
    group, seq = divergence.group, divergence.seq
    firsts = [states[side.ranks[0]] for side in divergence.sides]
    made = [[event_of(state, group, seq + n) for state in firsts] for n in range(3)]
    one, two, after = ([None if event is None else event.signature() for event in pair] for pair in made)
    if None in (*one, *two) or one[0] == one[1]:
        return False
    return one == two[::-1] and after[0] == after[1]


def _line(event: Event) -> str:
    """Where the call itself is made, as in functions that are called in another order."""
    return f"{event.site[0].file}:{event.site[0].line}" if event.site else ""


def _way(event: Event) -> str:
    return " ".join(f"{frame.file}:{frame.line}" for frame in event.site)
