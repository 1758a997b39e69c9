"""Ranks that communicate in different rounds of one loop: gradient accumulation, `no_sync()`, a condition on data."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.uneven import as_many_passes, passes
from rankscope.diagnosis.rules.divergence.waiting_words import call_text, now_text, standing, waiting_culprit
from rankscope.diagnosis.timeline import COVERING
from rankscope.diagnosis.waits import State, WaitGraph
from rankscope.evidence.model import Call

_FIX = (
    "let every rank communicate in the same rounds: the same number of accumulation steps, the same `no_sync()`",
    "decide from what all ranks share (the step, an all_reduce of the flag), not from what one rank has seen",
)


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
    guilty = smaller.ranks if len(gone.ranks) != len(stays.ranks) else ranks
    at = views.place(views.where(stays.site[0]))
    place = _first_uneven(gone, stays, divergence, graph)
    counts = tuple(
        f"rank {rank} made {passes(graph.states[rank], stays)} passes there, "
        f"{_communicating(graph.states[rank], stays, divergence)} of them with a collective"
        for rank in ranks
    )
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=tuple(
            waiting_culprit(
                graph.states[rank],
                f"waits in {call_text(graph.states[rank])}",
                views.where(stays.site[0]) or standing(graph.states[rank]),
            )
            for rank in guilty
        ),
        summary=f"{views.ranks_text(ranks)} do not communicate in the same passes through {at}{place}",
        because=(*counts, now_text(graph)),
        fix=_FIX,
        alternatives=(Possibility("uneven-data", "possible", "a loop may have been left before its end"),),
    )


def _with_collective(state: State, side: Side, divergence: Divergence) -> list[bool]:
    """Pass by pass, whether the rank made a collective of the group in it."""
    events = state.timeline.events.get(divergence.group, {}) if state.timeline is not None else {}
    times = sorted(event.at for event in events.values())
    return [
        any(call.entered_at <= at and (call.left_at is None or at <= call.left_at) for at in times)
        for call in _at(state, side)
    ]


def _communicating(state: State, side: Side, divergence: Divergence) -> int:
    return sum(_with_collective(state, side, divergence))


def _first_uneven(gone: Side, stays: Side, divergence: Divergence, graph: WaitGraph) -> str:
    one, other = (_with_collective(graph.states[side.ranks[0]], stays, divergence) for side in (gone, stays))
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False), 1):
        if mine != theirs:
            with_, without = (gone, stays) if mine else (stays, gone)
            verb = views.verb(with_.ranks, "reduce")
            return f": in pass {number} {views.ranks_text(with_.ranks)} {verb}, {views.ranks_text(without.ranks)} not"
    return ""
