"""Which side of a divergence took the wrong way."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from rankscope.diagnosis.divergence import Divergence, Side, event_of, site_key
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import Alone, Condition, Effect, NewWay
from rankscope.diagnosis.source.reader import Branch, CodeReader
from rankscope.diagnosis.timeline import COVERING, POINT_TO_POINT, Event
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import where
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import Call, Frame

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
_LONGEST_CONTEXT = 8
"""So many calls before the parting are looked at."""
_REMEMBERED = 400
"""So many calls back a habit is looked for."""
_DECISIVE = 2.0
"""By how much the weightier side must lead."""


class Blame(msgspec.Struct, frozen=True):
    ranks: tuple[int, ...]
    """Empty where the evidence does not tell the sides apart."""
    extra: bool
    """They made a call that the others did not make; otherwise they passed by one."""
    reserved: bool
    """A condition on the rank in the source decided it."""
    reasons: tuple[Fact, ...]


def blame(divergence: Divergence, states: dict[int, State], code: CodeReader) -> Blame:
    """Which side took the wrong way: by the branch its call stands under, then by number, then by habit."""
    sides = divergence.sides
    scores: dict[int, float] = {}
    reasons: dict[int, list[Fact]] = {}
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
) -> tuple[float, list[Fact], bool]:
    """How much speaks for this side being the wrong one; whether it is for a call it made or for one it passed by."""
    side = divergence.sides[index]
    others = [other for number, other in enumerate(divergence.sides) if number != index]
    own, own_reasons = _for_the_call(side, others, code)
    if own and all(_broke_habit(other, side, states) for other in others):
        own, own_reasons = 0.0, []  # the others had always made it too: the condition did not reserve it
    if own <= _CONDITION and _times_made(side, divergence, states):
        own, own_reasons = 0.0, []  # the condition had let ranks make this very call before
    passed, passed_reasons = _for_passing_by(side, others, states, code)
    score, reasons, extra = (own, own_reasons, True) if own >= passed else (passed, passed_reasons, False)
    total = sum(len(each.ranks) for each in divergence.sides)
    if 2 * max(len(other.ranks) for other in others) > total:
        score += _MINORITY
        reasons = [*reasons, Alone(side.ranks, sum(len(other.ranks) for other in others))]
    times = _ways(divergence, states)
    if times and not times[index]:
        habit = max(made for number, made in enumerate(times) if number != index)
        if habit >= _HABIT:
            reasons = [*reasons, NewWay(side.ranks, habit)]
        score += _HABITUAL if habit >= _HABIT else _NOVEL if habit else 0.0
    return score, reasons, extra and bool(own or not passed)


def _ways(divergence: Divergence, states: dict[int, State]) -> tuple[int, ...]:
    """For each side, how often its last step had been made before; empty where that cannot be told."""
    sides = divergence.sides
    firsts = [states[side.ranks[0]] for side in sides]
    if all(side.event is not None for side in sides):
        made = tuple(_times_made(side, divergence, states) for side in sides)
        return made if not all(made) else _longer_ways([_places_before(state, divergence) for state in firsts])
    steps = [_step_between_calls(side, state) for side, state in zip(sides, firsts, strict=True)]
    if not all(steps):
        return ()
    histories = [[_call_key(call) for call in _outer_calls(state)] for state in states.values()]
    made = tuple(
        sum(step == pair for history in histories for pair in pairwise(history[:-1])) if step is not None else 0
        for step in steps
    )
    return made if not all(made) else _longer_ways([list(map(_call_key, _outer_calls(state))) for state in firsts])


def _longer_ways(histories: list[list[object]]) -> tuple[int, ...]:
    """How often one rank had made its last step after the same calls before, as far back as it takes to tell one side
    from another: of three reductions in a row, the third is only missed by who looks at the two before it."""
    for length in range(2, _LONGEST_CONTEXT + 1):
        before = histories[0][-length - 1 : -1]
        if len(before) < length or any(history[-length - 1 : -1] != before for history in histories):
            return ()
        made = tuple(
            max(
                sum(
                    history[at] == side[-1] and history[at - length : at] == before
                    for at in range(length, len(history) - 1)
                )
                for history in histories
            )
            for side in histories
        )
        if not all(made) and max(made) >= _HABIT:
            return made
    return ()


def _places_before(state: State, divergence: Divergence) -> list[object]:
    """The lines of the group's calls in order, the one at which the ranks part last."""
    events = state.of(divergence.group)
    first = divergence.seq
    while first - 1 in events and divergence.seq - first < _REMEMBERED:
        first -= 1
    return [site_key(events[seq]) for seq in range(first, divergence.seq + 1) if seq in events]


def _call_key(call: Call) -> object:
    return call.op, call.site[:2]


def _step_between_calls(side: Side, state: State) -> tuple[object, object] | None:
    """From the call before to the one in which the rank ended or stands: its event, or one that covers collectives of
    which nothing is written down."""
    calls = _outer_calls(state)
    if len(calls) < 2:
        return None
    last = calls[-1]
    unfinished = last.left_at is None or last.failed
    fits = last.op in COVERING if side.event is None else last.entered_at == side.event.at
    return (_call_key(calls[-2]), _call_key(last)) if unfinished and fits else None


def _outer_calls(state: State) -> tuple[Call, ...]:
    progress = state.seen.progress if state.seen is not None else None
    calls = progress.calls if progress is not None else ()
    return tuple(call for call in calls if call.depth == 0 and (call.group or call.op in COVERING))[-_REMEMBERED:]


def _for_the_call(side: Side, others: list[Side], code: CodeReader) -> tuple[float, list[Fact]]:
    found = code.guard(side.site) if side.site else None
    if found is None:
        return 0, []
    frame, branch = found
    if branch.on_rank and _most(side, [side, *others]):
        return 0, []  # what most ranks do is the rule, and the condition an exception from it
    if not branch.on_rank and any(_earlier(other.event, side.event) for other in others):
        return 0, []  # the ways had parted before this condition
    if any(code.stands_under(found, other.site) for other in others):
        return 0, []
    reason = condition(frame, branch, "leads-to", side.ranks)
    return (_ON_RANK if branch.on_rank else _CONDITION), [reason]


def condition(frame: Frame, branch: Branch, effect: Effect, ranks: tuple[int, ...]) -> Condition:
    """What a condition in the function of a frame did for these ranks."""
    at = Where(frame.file, branch.line, frame.function)
    return Condition(branch.test, branch.kind, branch.quote, at, effect, ranks, where(frame))


def _earlier(one: Event | None, other: Event | None) -> bool:
    """By steps, then by lines from the outermost function inwards."""
    if one is None or other is None or one.step < 0 or other.step < 0:
        return False
    first, second = ([frame.line for frame in reversed(event.site)] for event in (one, other))
    return (one.step, first) < (other.step, second)


def _most(side: Side, sides: list[Side]) -> bool:
    """Whether most ranks of the group make this call, which is one for all of them: a message has its own partners."""
    if side.event is None or side.event.op in POINT_TO_POINT:
        return False
    return 2 * len(side.ranks) > sum(len(each.ranks) for each in sides)


def _broke_habit(side: Side, other: Side, states: dict[int, State]) -> bool:
    """Whether the ranks of `side` had always made the other side's call after the call before it, until now."""
    calls = _outer_calls(states[other.ranks[0]])
    made = list(map(_full_key, calls))
    chain = tuple((frame.file, frame.line) for frame in other.site)
    until = other.event.at if other.event is not None else 0.0
    made_it = (at for at in range(len(made) - 1, 0, -1) if made[at][1] == chain and calls[at].entered_at <= until)
    at = next(made_it, None)
    if at is None:
        return False
    for rank in side.ranks:
        history = list(map(_full_key, _outer_calls(states[rank])))
        followed = [after for before, after in pairwise(history) if before == made[at - 1]]
        if history[-2:-1] == [made[at - 1]]:
            followed.pop()  # what it does now instead
        if len(followed) < _HABIT or any(after != made[at] for after in followed):
            return False
    return True


def _full_key(call: Call) -> tuple[str, tuple[tuple[str, int], ...]]:
    return call.op, tuple((frame.file, frame.line) for frame in call.site)


def _for_passing_by(
    side: Side, others: list[Side], states: dict[int, State], code: CodeReader
) -> tuple[float, list[Fact]]:
    best: tuple[float, list[Fact]] = (0, [])
    for other in others:
        guarded = code.guard(other.site) if other.site else None
        if guarded is not None and guarded[1].on_rank:
            # A call that is reserved for some ranks is no call the others should have made, unless most make it, or
            # these ranks had always made it themselves. These the condition does not keep from it; another may.
            habitual = _broke_habit(side, other, states)
            if best[0] < _ON_RANK and (habitual or _most(other, [side, *others])):
                led = code.way_past(other.site) if habitual else None
                frame, branch = led or guarded
                best = (_ON_RANK, [condition(frame, branch, "leads-past" if led else "keeps-from", side.ranks)])
            continue
        found = code.way_past(other.site) if other.event is not None else None
        if found is None:
            if best[0] < _WAY_PAST and guarded is not None and _broke_habit(side, other, states):
                best = (_WAY_PAST, [condition(*guarded, "keeps-from", side.ranks)])
            continue
        frame, branch = found
        weight = _ON_RANK if branch.on_rank else _WAY_PAST
        if weight > best[0]:
            best = (weight, [condition(frame, branch, "leads-past", side.ranks)])
    return best


def _times_made(side: Side, divergence: Divergence, states: dict[int, State]) -> int:
    """How often the step from the call before to this one had been made, by any rank."""
    if side.event is None:
        return 0
    group, seq = divergence.group, divergence.seq
    before, here = site_key(event_of(states[side.ranks[0]], group, seq - 1)), site_key(side.event)
    made = 0
    # Many ranks share their places: each is compared once.
    is_here: dict[int, bool] = {}
    for state in states.values():
        events = state.of(group)
        for number in range(max(min(events, default=seq), seq - _REMEMBERED), seq):
            event = events.alike(number)
            if event is None:
                continue
            if id(event.site) not in is_here:
                is_here[id(event.site)] = site_key(event) == here
            if is_here[id(event.site)] and number - 1 in events:
                made += site_key(events.alike(number - 1)) == before
    return made
