"""Sends and receives that wait for each other in a circle."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.timeline import POINT_TO_POINT
from rankscope.diagnosis.verdict import Alternative, Culprit
from rankscope.diagnosis.waits import State, WaitGraph

_LEAST_HABIT = 3
"""Earlier rounds that agree on a number of messages before it counts as the rank's habit."""


def messages_crossed(graph: WaitGraph, knot: frozenset[int]) -> Finding:
    """Names the rank that made fewer sends or receives than in every round before; without such a habit, all of them
    are parties to it."""
    ranks = tuple(sorted(knot))
    lines = tuple(_line(graph.states[rank]) for rank in ranks)
    short = {rank: text for rank in ranks if (text := _short_round(graph.states[rank])) is not None}
    if len(short) == 1:
        rank, text = next(iter(short.items()))
        return Finding(
            outcome="hang",
            cause="collective-skipped",
            certainty="proven",
            culprits=(_culprit(graph.states[rank]),),
            summary=f"rank {rank} {text} and went on to {_line(graph.states[rank]).partition(' is in ')[2]}",
            because=(f"rank {rank} {text}", *lines, "no rank of the circle can go on before another does"),
            fix=("make both sides agree on the number of messages: send it first, or pad the last batch",),
            alternatives=(Alternative("collective-mismatch", "possible", "the other side may expect too many"),),
        )
    return Finding(
        outcome="hang",
        cause="collective-mismatch",
        certainty="proven",
        culprits=tuple(_culprit(graph.states[rank]) for rank in ranks),
        summary=f"{views.ranks_text(ranks)} send and receive in an order in which each waits for the next",
        because=(*lines, "no rank of the circle can go on before another does"),
        fix=("let one side of each pair send while the other receives, or use batch_isend_irecv",),
    )


def _line(state: State) -> str:
    assert state.wait is not None
    at = views.place(views.where(state.wait.site[0])) if state.wait.site else views.NO_LINE
    return f"rank {state.rank} is in {state.wait.op} with rank {state.wait.peer} at {at}"


def _culprit(state: State) -> Culprit:
    assert state.seen is not None
    assert state.wait is not None
    at = views.where(state.wait.site[0]) if state.wait.site else None
    return views.rank_culprit(state.seen, f"in {state.wait.op} with rank {state.wait.peer}", at)


def _short_round(state: State) -> str | None:
    """The last whole run of equal messages, where it is shorter than all such runs before."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.depth == 0 and call.op in POINT_TO_POINT]
    runs = [(key, len(list(group))) for key, group in groupby(made, key=lambda call: (call.op, call.peer))]
    if len(runs) < 2:
        return None
    (op, peer), count = runs[-2]
    habits = Counter(length for key, length in runs[1:-2] if key == (op, peer))
    if len(habits) != 1 or sum(habits.values()) < _LEAST_HABIT:
        return None
    usual = next(iter(habits))
    return (
        f"made {count} {op} with rank {peer} where it had made {usual} in every round before" if count < usual else None
    )
