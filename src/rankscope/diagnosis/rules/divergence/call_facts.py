"""Facts about waiting ranks and diverging calls, from the wait-for graph and the sequences."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import Called, FirstDifference, NotCome, Now, WaitsIn
from rankscope.diagnosis.finding import Suspect, Way
from rankscope.diagnosis.timeline import POINT_TO_POINT, ROOTED, SIZED
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Frame


def site_of(state: State) -> tuple[Frame, ...]:
    return state.wait.site if state.wait is not None else ()


def standing(state: State) -> Where | None:
    """The user's line on which the rank waits."""
    if site_of(state):
        return views.where(site_of(state)[0])
    return views.current_where(state.seen) if state.seen is not None else None


def suspect(state: State, doing: Fact, at: Where | None) -> Suspect:
    assert state.seen is not None
    return views.rank_culprit(state.seen, doing, at)


def waits_in(state: State, *, at: Where | None = None) -> WaitsIn:
    """What the rank stands in; `at` where the line is to be told."""
    wait = state.wait
    if wait is None:
        return WaitsIn((state.rank,), "no collective", where=at)
    message = wait.op in POINT_TO_POINT or (wait.op == "Work.wait" and wait.peer >= 0)
    return WaitsIn(
        ranks=(state.rank,),
        op=wait.op,
        group=wait.group,
        number=wait.seq,
        peer=wait.peer if message else -1,
        where=at,
        several=bool(wait.candidates),
    )


def message(state: State) -> WaitsIn:
    """The send or receive that the rank stands in, with its line."""
    site = site_of(state)
    return waits_in(state, at=views.where(site[0]) if site else None)


def message_suspect(state: State) -> Suspect:
    site = site_of(state)
    return suspect(state, waits_in(state), views.where(site[0]) if site else None)


def now(graph: WaitGraph) -> Now:
    """Where the ranks that cannot go on stand, those in one call together."""
    alike: dict[WaitsIn, list[int]] = {}
    for rank in sorted(graph.deadlocked):
        wait = waits_in(graph.states[rank])
        alike.setdefault(WaitsIn((), wait.op, wait.group, wait.number, wait.peer, None, wait.several), []).append(rank)
    return Now(
        tuple(
            WaitsIn(tuple(ranks), each.op, each.group, each.number, each.peer, None, each.several)
            for each, ranks in alike.items()
        )
    )


def called(side: Side, divergence: Divergence) -> Called | NotCome:
    """What the ranks of a side called, with whatever tells it from what the others called."""
    event = side.event
    if event is None:
        return NotCome(side.ranks)
    alike = [other.event for other in divergence.sides if other.event is not None and other.event.op == event.op]
    roots = {other.root for other in alike} if event.op in ROOTED else set()
    types = {other.dtype for other in alike} if event.op in SIZED else set()
    reductions = {other.reduces for other in alike}
    shapes = {other.shape for other in alike}
    return Called(
        ranks=side.ranks,
        op=event.op,
        where=views.where(side.site[0]) if side.site else None,
        numel=event.numel,
        dtype=event.dtype if len(types) > 1 else "",
        root=event.root if len(roots) > 1 else -1,
        step=event.step,
        caller=caller(side, divergence),
        through=event.through,
        reduces=event.reduces if len(reductions) > 1 else "",
        shape=event.shape if len(shapes) > 1 else (),
    )


def caller(side: Side, divergence: Divergence) -> Where | None:
    """Where the sides stand on one line, as in a model's forward: the innermost line on which they differ."""
    for other in divergence.sides:
        if other is side or other.site[:1] != side.site[:1]:
            continue
        parted = next((mine for mine, theirs in zip(side.site, other.site, strict=False) if mine != theirs), None)
        if parted is not None:
            return views.where(parted)
    return None


def ways(divergence: Divergence) -> tuple[Way, ...]:
    """The sides of the divergence, for a verdict that cannot call one of them wrong."""
    return tuple(
        Way(side.ranks, views.where(side.site[0]) if side.site else None, called(side, divergence))
        for side in divergence.sides
    )


def first_difference(divergence: Divergence, graph: WaitGraph) -> FirstDifference:
    """The place; with the iteration, by how often a side had called, where no optimizer step counts it."""
    plain = FirstDifference(divergence.group, divergence.seq)
    if any(side.event is not None and side.event.step > 0 for side in divergence.sides):
        return plain
    for side in divergence.sides:
        timeline = graph.states[side.ranks[0]].timeline
        if side.event is None or not side.site or timeline is None or timeline.oldest(divergence.group) != 1:
            continue
        made = sum(
            seq < divergence.seq and event.site[:1] == side.site[:1]
            for seq, event in timeline.events[divergence.group].items()
        )
        if made:
            at = views.where(side.site[0])
            return FirstDifference(divergence.group, divergence.seq, made + 1, side.event.op, at)
    return plain
