"""Ranks that communicate in different rounds of one loop: gradient accumulation, `no_sync()`, a condition on data."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.facts.calls import Passes, Perhaps, UnevenPasses
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.call_facts import now, standing, suspect, waits_in, ways
from rankscope.diagnosis.rules.divergence.uneven import as_many_passes, call_at, passes
from rankscope.diagnosis.timeline import COVERING
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Call


def uneven_passes(divergence: Divergence, graph: WaitGraph) -> Finding | None:
    """One side has made as many backward passes as the other, or more, and fewer collectives in them. Which of the two
    does as the program means it is not known, unless most ranks do it."""
    if len(divergence.sides) != 2:
        return None
    for gone, stays in (divergence.sides, divergence.sides[::-1]):
        if _covered(stays, graph) and as_many_passes(gone, divergence, graph):
            return _explain(gone, stays, divergence, graph)
    return None


def _covered(side: Side, graph: WaitGraph) -> bool:
    """The side waits in a call that communicates only at times."""
    return all(
        (calls := _at(graph.states[rank], side)) and calls[-1].op in COVERING and calls[-1].left_at is None
        for rank in side.ranks
    )


def _at(state: State, side: Side) -> tuple[Call, ...]:
    progress = state.seen.progress if state.seen is not None else None
    calls = progress.calls if progress is not None else ()
    here = [(frame.file, frame.line) for frame in side.site[:2]]
    return tuple(
        call for call in calls if call.depth == 0 and [(frame.file, frame.line) for frame in call.site[:2]] == here
    )


def _explain(gone: Side, stays: Side, divergence: Divergence, graph: WaitGraph) -> Finding:
    ranks = tuple(sorted((*gone.ranks, *stays.ranks)))
    smaller = min((gone, stays), key=lambda side: len(side.ranks))
    guilty = smaller.ranks if len(gone.ranks) != len(stays.ranks) else ()
    at = views.where(stays.site[0])
    op = call_at(graph.states[stays.ranks[0]], stays)
    counts = tuple(
        Passes(
            rank,
            passes(graph.states[rank], stays, op) or 0,
            sum(_with_collective(graph.states[rank], stays, divergence)),
        )
        for rank in ranks
    )
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=tuple(
            suspect(graph.states[rank], waits_in(graph.states[rank]), at or standing(graph.states[rank]))
            for rank in guilty
        ),
        summary=_first_uneven(gone, stays, divergence, graph),
        because=(*counts, now(graph)),
        fix=(Advice("same-rounds"), Advice("shared-decision")),
        alternatives=(Possibility("uneven-data", "possible", Perhaps("loop-left-early")),),
        ways=() if guilty else ways(divergence),
    )


def _with_collective(state: State, side: Side, divergence: Divergence) -> list[bool]:
    """Pass by pass, whether the rank made a collective of the group in it."""
    events = state.of(divergence.group)
    times = sorted(event.at for event in events.values())
    return [
        any(call.entered_at <= at and (call.left_at is None or at <= call.left_at) for at in times)
        for call in _at(state, side)
    ]


def _first_uneven(gone: Side, stays: Side, divergence: Divergence, graph: WaitGraph) -> UnevenPasses:
    ranks = tuple(sorted((*gone.ranks, *stays.ranks)))
    at = views.where(stays.site[0])
    one, other = (_with_collective(graph.states[side.ranks[0]], stays, divergence) for side in (gone, stays))
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False), 1):
        if mine != theirs:
            with_, without = (gone, stays) if mine else (stays, gone)
            return UnevenPasses(ranks, at, number, with_.ranks, without.ranks)
    return UnevenPasses(ranks, at)
