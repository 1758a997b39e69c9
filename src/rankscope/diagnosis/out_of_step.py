"""Calls that are all made from one line, of which a rank has left one out or made one more: from then on they belong to
other optimizer steps, place by place. Calls of another group show that the steps themselves are counted alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.sequences import Kind
from rankscope.diagnosis.timeline import Event
from rankscope.diagnosis.wait_graph import State

_AGREED_BEFORE = 6
_AGREE_AFTER = 8
"""Calls, of as many steps at least."""
_MOST_APART = 8
_LEAST_LATER = 4
"""Steps after that, in another group, that show that they are counted alike."""

Calls = dict[int, Mapping[int, Event]]
"""Rank → its calls of the group by their places."""


class OutOfStep(msgspec.Struct, frozen=True):
    divergence: Divergence
    sure: bool
    """Otherwise a rank may as well have made an optimizer step more, or one fewer, than the rest."""


def find_out_of_step(group: str, members: Sequence[State]) -> OutOfStep | None:
    """None where the calls are of the same steps, or do not agree again so many calls apart."""
    calls: Calls = {state.rank: state.of(group) for state in members}
    last = min(state.timeline.newest.get(group, 0) for state in members if state.timeline is not None)
    if len(_steps(calls, last)) == 1:
        return None  # thousands of ranks are not compared call by call
    first = max(min(each) for each in calls.values())
    parted = next((place for place in range(first, last + 1) if len(_steps(calls, place)) != 1), None)
    if parted is None or parted - first < _AGREED_BEFORE:
        return None
    before = [step for place in range(first, parted) for step in _steps(calls, place)]
    steps = _steps(calls, parted)
    if len(set(before)) < _AGREED_BEFORE or len(steps) != 2 or min(*before, *steps) < 0:
        return None
    behind, ahead = (steps[step] for step in sorted(steps))
    apart = next((n for n in range(1, _MOST_APART + 1) if _agree(calls, parted, behind, ahead, n)), None)
    if apart is None:
        return None
    kind = _kind(calls, (behind, ahead), min(steps), before)
    if kind is None:
        return None
    odd, usual = (ahead, behind) if kind == "skipped" else (behind, ahead)
    sides = (_side(calls, usual, parted), _side(calls, odd, parted, kind, apart))
    sure = any(_same_steps(other, members, min(steps)) for other in _groups(members) if other != group)
    return OutOfStep(Divergence(group, parted, sides, parted - first), sure)


def _steps(calls: Calls, place: int) -> dict[int, list[int]]:
    """Step → the ranks whose call of that place belongs to it."""
    found: dict[int, list[int]] = {}
    for rank, events in calls.items():
        event = events.get(place)
        found.setdefault(-1 if event is None else event.step, []).append(rank)
    return found


def _agree(calls: Calls, place: int, behind: list[int], ahead: list[int], apart: int) -> bool:
    """So many calls apart, the ranks of both sides are at the same steps again, and at each place they are not."""
    for at in range(place, place + _AGREE_AFTER):
        here = _steps({rank: calls[rank] for rank in ahead}, at)
        there = _steps({rank: calls[rank] for rank in behind}, at + apart)
        beside = _steps({rank: calls[rank] for rank in behind}, at)
        if len(here) != 1 or min(here) < 0 or here.keys() != there.keys() or here.keys() == beside.keys():
            return False
    return True


def _kind(calls: Calls, sides: tuple[list[int], list[int]], step: int, before: Sequence[int]) -> Kind | None:
    """Whether the ranks ahead left calls of the step out, or those behind made more: by how many calls each step before
    had, then by number."""
    usual = {count for made, count in Counter(before).items() if made not in (min(before), step)}
    made = [_made_in(calls[ranks[0]], step) for ranks in sides]
    if len(usual) == 1:
        habit = usual.pop()
        if made[0] == habit != made[1]:
            return "skipped"
        return "extra" if made[1] == habit != made[0] else None
    behind, ahead = map(len, sides)
    return None if behind == ahead else "skipped" if ahead < behind else "extra"


def _made_in(events: Mapping[int, Event], step: int) -> int:
    return sum(event.step == step for event in events.values())


def _same_steps(group: str, members: Sequence[State], since: int) -> bool:
    """Place by place the calls of another group belong to the same steps, also after that one."""
    calls: Calls = {state.rank: state.of(group) for state in members}
    if not all(calls.values()):
        return False
    first = max(min(each) for each in calls.values())
    last = min(max(each) for each in calls.values())
    known = [steps for place in range(first, last + 1) if max(steps := _steps(calls, place)) >= 0]
    later = {step for steps in known for step in steps if step > since}
    return all(len(steps) == 1 for steps in known) and len(later) >= _LEAST_LATER


def _groups(members: Sequence[State]) -> set[str]:
    return {name for state in members if state.timeline is not None for name in state.timeline.events if name}


def _side(calls: Calls, ranks: list[int], place: int, kind: Kind | None = None, count: int = 0) -> Side:
    event = calls[ranks[0]][place]
    return Side(tuple(sorted(ranks)), event, event.site, kind, count)
