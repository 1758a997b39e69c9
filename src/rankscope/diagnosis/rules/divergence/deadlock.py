"""Ranks that wait for one another and can never go on: skipped, mismatched and crossed collectives, uneven data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.divergence import find_divergence, site_key
from rankscope.diagnosis.facts import changed
from rankscope.diagnosis.facts.calls import GroupOrder, NewWay, NoDifferenceSeen, Perhaps
from rankscope.diagnosis.finding import Finding, Possibility, Way
from rankscope.diagnosis.rank_wait import Wait
from rankscope.diagnosis.rules.divergence.call_facts import now, site_of, standing, suspect, waits_in
from rankscope.diagnosis.rules.divergence.misdirected import explain_misdirected
from rankscope.diagnosis.rules.divergence.parted import explain_parted
from rankscope.diagnosis.rules.divergence.passes import uneven_passes
from rankscope.diagnosis.rules.divergence.point_to_point import (
    message_missing,
    messages_crossed,
    messages_left_out,
)
from rankscope.diagnosis.rules.divergence.uneven import short_of_data
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.timeline import POINT_TO_POINT, Event
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import State, WaitGraph, innermost_knot, members_of
from rankscope.evidence.model import Evidence, Frame

_HABIT = 5
"""So often a rank must have gone one way before another one counts as unusual."""


def explain_deadlock(graph: WaitGraph, evidence: Evidence) -> Finding:
    """For a graph whose `deadlocked` is not empty and holds no rank that waits for an ended one."""
    code = CodeReader(evidence)
    knot = innermost_knot(graph)
    crossed = _crossed_groups(graph, knot)
    contradicted = _contradicted(graph, knot)
    passed = contradicted or _come_to_first(crossed, graph) or _left_out(crossed, graph, code)
    passed = passed or _passed_by(crossed, graph, code)
    if contradicted is None and _took_another_order(crossed, graph, code):
        return _order_cycle(crossed, graph, code)
    if crossed and passed is None and not _reserved_call(crossed, graph, code):
        return _order_cycle(crossed, graph, code)
    misdirected = explain_misdirected(graph, knot)
    if misdirected is not None and misdirected.culprits:
        return misdirected
    missing = message_missing(graph, knot, code)
    if missing is None or not missing.culprits:
        missing = messages_left_out(graph, knot, code) or missing
    if misdirected is not None:
        return missing if missing is not None and missing.culprits else misdirected
    if all(_wait_op(graph, rank) in POINT_TO_POINT for rank in knot):
        return messages_crossed(graph, knot, code)
    if missing is not None:
        return missing
    waits = Counter(
        wait.group for rank in knot if (wait := graph.states[rank].wait) is not None and wait.op not in POINT_TO_POINT
    )
    for group in sorted(waits, key=lambda group: (group != passed, -waits[group], group)):
        divergence = graph.once(find_divergence, group) if group else None
        if divergence is not None and len(divergence.sides) > 1:
            return (
                short_of_data(divergence, graph, code)
                or uneven_passes(divergence, graph)
                or explain_parted(divergence, graph, code)
            )
        if group == passed:
            break  # the ranks parted here, unseen; where the others wait is a consequence
    return _unexplained(graph)


def _wait_op(graph: WaitGraph, rank: int) -> str:
    wait = graph.states[rank].wait
    return "" if wait is None else wait.op


def _crossed_groups(graph: WaitGraph, knot: frozenset[int]) -> dict[str, tuple[int, ...]]:
    """Group → ranks waiting in it, where the ranks of one knot wait in different groups."""
    found: dict[str, list[int]] = {}
    for rank in sorted(knot):
        wait = graph.states[rank].wait
        if wait is not None and wait.group and wait.op not in POINT_TO_POINT:
            found.setdefault(wait.group, []).append(rank)
    return {group: tuple(ranks) for group, ranks in found.items()} if len(found) > 1 else {}


def _members_of_several(crossed: dict[str, tuple[int, ...]], graph: WaitGraph) -> dict[str, tuple[int, ...]]:
    """Only a member of several of the groups has an order to keep; the others of the group merely wait with it."""
    members = {group: members_of(group, graph.states) for group in crossed}
    return {
        group: tuple(rank for rank in ranks if sum(rank in members[each] for each in crossed) > 1)
        for group, ranks in crossed.items()
    }


def _until_its_wait(state: State) -> list[Event]:
    """The rank's calls of all groups, in order, up to the one it waits in."""
    event = state.wait.event if state.wait is not None else None
    if event is None or state.timeline is None:
        return []
    events = sorted((e for group in state.timeline.events.values() for e in group.values()), key=lambda each: each.at)
    return events[: events.index(event) + 1] if event in events else []


def _usual_instead(events: list[Event], kind: Callable[[Event], object]) -> tuple[Event, int] | None:
    """What had always followed the last call but one, and how often; None where the last one had followed it too, or
    there was no habit."""
    kinds = [kind(each) for each in events]
    after = [at for at in range(1, len(kinds) - 1) if kinds[at - 1] == kinds[-2]] if len(kinds) > 1 else []
    nexts = {kinds[at] for at in after}
    if len(nexts) != 1 or kinds[-1] in nexts or len(after) < _HABIT:
        return None
    return events[after[0]], len(after)


def _left_its_order(state: State) -> int | None:
    """How often the rank had gone on otherwise from its last call before the one it waits in, always alike; None where
    it had come this way before, or had no habit."""
    usual = _usual_instead(_until_its_wait(state), lambda each: (each.group, each.op))
    return None if usual is None else usual[1]


def _took_another_order(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> bool:
    """A rank waits in a call that it makes from a new place, before the one that had always come next and that its
    code comes to after it."""
    for ranks in crossed.values():
        for rank in ranks:
            events = _until_its_wait(graph.states[rank])
            usual = _usual_instead(events, _kind_and_place)
            if usual is None or usual[0].group not in crossed or usual[0].group == events[-1].group:
                continue
            new = all(site_key(each) != site_key(events[-1]) for each in events[:-1])
            if new and code.still_to_come(usual[0].site, usual[0].op, events[-1].site):
                return True
    return False


def _left_out(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> str | None:
    """The group of a call that always came next, on another line, until now: ranks of one side went by it, which the
    source allows, and those that wait in it did as ever. None where a rank of each side did something new."""
    passed = set()
    for group, ranks in crossed.items():
        for rank in ranks:
            events = _until_its_wait(graph.states[rank])
            usual = _usual_instead(events, _kind_and_place)
            if usual is None:
                continue
            call = usual[0]
            if call.group == group or site_key(call) == site_key(events[-1]) or code.way_past(call.site) is None:
                return None
            passed.add(call.group)
    return passed.pop() if len(passed) == 1 and passed <= crossed.keys() else None


def _kind_and_place(event: Event) -> object:
    return event.group, event.op, site_key(event)


def _contradicted(graph: WaitGraph, knot: frozenset[int]) -> str | None:
    """The group of a call that a rank waits in, and another has made otherwise at the same place: there they parted,
    wherever the other one has gone since."""
    timelines = {rank: graph.states[rank].timeline for rank in sorted(knot)}
    recorded = {rank: timeline for rank, timeline in timelines.items() if timeline is not None and timeline.recorded}
    for rank in sorted(knot):
        wait = graph.states[rank].wait
        if wait is None or wait.event is None or not wait.seq:
            continue
        events = (made.at(wait.group, wait.seq) for other, made in recorded.items() if other != rank)
        if any(event is not None and event.contradicts(wait.event) for event in events):
            return wait.group
    return None


def _come_to_first(crossed: dict[str, tuple[int, ...]], graph: WaitGraph) -> str | None:
    """The group whose waiting ranks have enqueued, behind what they wait in, the very calls that the others wait in:
    theirs comes first in the program, and the others have passed it by. None where both have: an order of groups."""
    found = [group for group in crossed if _have_queued_all(group, crossed, graph)]
    return found[0] if len(found) == 1 else None


def _have_queued_all(group: str, crossed: dict[str, tuple[int, ...]], graph: WaitGraph) -> bool:
    awaited = {
        (wait.group, wait.seq)
        for other, ranks in crossed.items()
        for rank in ranks
        if other != group and (wait := graph.states[rank].wait) is not None and wait.event is not None
    }
    states = [graph.states[rank] for rank in crossed[group]]
    return bool(awaited) and all(
        state.timeline is not None
        and (event := state.timeline.at(*place)) is not None
        and state.wait is not None
        and state.wait.event is not None
        and event.backend == "nccl"
        and event.at > state.wait.event.at
        for state in states
        for place in awaited
    )


def _passed_by(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> str | None:
    """The group of the call that comes earlier in straight code: the ranks at the later one will not come back to it.

    None where both calls are one line, as in a loop over the groups, or the two branches of one condition.
    """
    waits = [[wait for rank in ranks if (wait := graph.states[rank].wait) is not None] for ranks in crossed.values()]
    if len(waits) < 2 or not all(waits):
        return None
    stepped = all(wait.event is not None and wait.event.step >= 0 for group in waits for wait in group)

    def progress(wait: Wait) -> tuple[int, list[int]]:
        # Steps, where all are known, then lines from the outermost function inwards: what is smaller comes earlier.
        step = wait.event.step if stepped and wait.event is not None else 0
        return step, [frame.line for frame in reversed(_issued(wait))]

    earliest, next_ = sorted((min(group, key=progress) for group in waits), key=progress)[:2]
    for here, there in zip(reversed(_issued(earliest)), reversed(_issued(next_)), strict=False):
        if (here.file, here.function) != (there.file, there.function):
            return None
        if here.line != there.line:
            return None if code.opposite_branches((here,), (there,)) is not None else earliest.group
    return None


def _called_at(state: State) -> Where | None:
    """The line that issued the awaited collective; on a GPU the rank stands further on, where it synchronises."""
    site = _issued(state.wait) if state.wait is not None else ()
    return views.where(site[0]) if site else standing(state)


def _issued(wait: Wait) -> tuple[Frame, ...]:
    return wait.event.site if wait.event is not None and wait.event.site else wait.site


def _reserved_call(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> bool:
    """One of the crossing calls is made under a condition on the rank that has no counterpart on the other side."""
    sites = {group: site_of(graph.states[ranks[0]]) for group, ranks in crossed.items()}
    for group, site in sites.items():
        found = code.guard(site)
        if found is None or not found[1].on_rank:
            continue
        others = [other for name, other in sites.items() if name != group]
        if not any(code.opposite_branches(site, other) for other in others):
            return True
    return False


def _order_shows_at(
    state: State, crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader
) -> Where | None:
    """The line that issued the awaited collective. Where those of all groups are issued on one line, such as that of a
    helper: the innermost one on which the ways to it differ, or else the one in the loop over the groups."""
    waits = [wait for ranks in crossed.values() for rank in ranks if (wait := graph.states[rank].wait) is not None]
    site = _issued(state.wait) if state.wait is not None else ()
    others = [other for wait in waits if (other := _issued(wait)) != site]
    if not site or any(other[:1] != site[:1] for other in others):
        return _called_at(state)
    looped = (frame for frame in site if code.repeats(frame))
    found = next((frame for frame in site if frame not in others[0]), None) if others else next(looped, None)
    return views.where(found or site[0])


def _order_cycle(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> Finding:
    """Who took another order than it always had, while most kept to theirs; else one rank against several. Where as
    many went each way, nobody in particular did."""
    unusual = {rank: times for rank in graph.deadlocked if (times := _left_its_order(graph.states[rank])) is not None}
    of_several = _members_of_several(crossed, graph)
    sizes = sorted((len(ranks) for ranks in of_several.values()), reverse=True)
    in_knot = {rank for ranks in crossed.values() for rank in ranks}
    by_habit = 0 < 2 * len(unusual) < len(graph.deadlocked) and set(unusual) <= in_knot
    apart = by_habit or (sizes[0] > sizes[-1] > 0)
    guilty: tuple[int, ...] = ()
    if by_habit:
        guilty = tuple(sorted(unusual))
    elif apart:
        guilty = min(of_several.values(), key=len)
    habit = (NewWay(guilty, min(unusual.values())),) if by_habit else ()
    every = tuple(sorted(rank for ranks in crossed.values() for rank in ranks))
    waits = tuple(
        changed(waits_in(first, at=_called_at(first)), ranks=ranks)
        for ranks in crossed.values()
        if (first := graph.states[ranks[0]])
    )
    return Finding(
        outcome="hang",
        cause="group-order-cycle",
        certainty="proven",
        culprits=tuple(
            suspect(state, waits_in(state), _order_shows_at(state, crossed, graph, code))
            for rank in guilty
            if (state := graph.states[rank])
        ),
        summary=GroupOrder(guilty or every, len(crossed), waits, apart),
        because=(*waits, *habit, GroupOrder(every, len(crossed), waits, apart)),
        fix=(Advice("one-group-order"), Advice("first-group-first")),
        alternatives=(Possibility("collective-skipped", "possible", Perhaps("one-call-missing")),),
        ways=() if apart else tuple(Way(wait.ranks, wait.where, wait) for wait in waits),
    )


def _unexplained(graph: WaitGraph) -> Finding:
    """Proven stuck, yet the sequences do not show where they parted: no culprit is named."""
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=NoDifferenceSeen(tuple(sorted(graph.deadlocked))),
        because=(now(graph),),
        fix=(Advice("compare-stacks"), Advice("same-collectives")),
    )
