"""Sends and receives that wait for each other in a circle, or for a rank that has gone on to a collective."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rules.divergence.point_to_point_words import message_culprit, message_line
from rankscope.diagnosis.timeline import POINT_TO_POINT
from rankscope.diagnosis.waits import State, WaitGraph

_LEAST_HABIT = 3
"""Earlier rounds that agree on a number of messages before it counts as the rank's habit."""


def messages_crossed(graph: WaitGraph, knot: frozenset[int]) -> Finding:
    """Names the rank that made fewer sends or receives than in every round before; without such a habit, all of them
    are parties to it."""
    ranks = tuple(sorted(knot))
    lines = tuple(message_line(graph.states[rank]) for rank in ranks)
    short = {rank: text for rank in ranks if (text := _short_round(graph.states[rank])) is not None}
    if len(short) == 1:
        rank, text = next(iter(short.items()))
        return Finding(
            outcome="hang",
            cause="collective-skipped",
            certainty="proven",
            culprits=(message_culprit(graph.states[rank]),),
            summary=f"rank {rank} {text} and went on to {message_line(graph.states[rank]).partition(' is in ')[2]}",
            because=(f"rank {rank} {text}", *lines, "no rank of the circle can go on before another does"),
            fix=("make both sides agree on the number of messages: send it first, or pad the last batch",),
            alternatives=(Possibility("collective-mismatch", "possible", "the other side may expect too many"),),
        )
    return Finding(
        outcome="hang",
        cause="collective-mismatch",
        certainty="proven",
        culprits=tuple(message_culprit(graph.states[rank]) for rank in ranks),
        summary=f"{views.ranks_text(ranks)} send and receive in an order in which each waits for the next",
        because=(*lines, "no rank of the circle can go on before another does"),
        fix=("let one side of each pair send while the other receives, or use batch_isend_irecv",),
    )


def message_missing(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """A rank waits for one more of the messages that it has had many of, and its peer has gone on to a collective.

    Sends and receives are matched by their number alone: one too few may have been long ago, and nothing tells a send
    that was left out from a receive too many. Nobody is named, unless the peer's own habit gives it away.
    """
    for rank in sorted(knot):
        state = graph.states[rank]
        peer = graph.states.get(state.wait.peer) if state.wait is not None else None
        if state.wait is None or peer is None or peer.wait is None or peer.rank not in knot:
            continue
        if state.wait.op not in POINT_TO_POINT or peer.wait.op in POINT_TO_POINT or not _often_before(state):
            continue
        short = _short_round(peer)
        at = views.place(views.where(peer.wait.site[0])) if peer.wait.site else views.NO_LINE
        gone = f"rank {peer.rank} has gone on to the {peer.wait.op} at {at}"
        waits = tuple(
            message_line(graph.states[other]) for other in sorted(knot) if _waits_for_message(graph.states[other])
        )
        return Finding(
            outcome="hang",
            cause="collective-skipped",
            certainty="proven",
            culprits=() if short is None else (_gone_on(peer),),
            summary=f"{message_line(state)}, and {gone}: the number of messages between them does not match",
            because=(*waits, gone, *(() if short is None else (f"rank {peer.rank} {short}",))),
            fix=("make both sides agree on the number of messages: send it first, or pad the last batch",),
            alternatives=(Possibility("uneven-data", "possible", "one side may have had fewer batches to send"),),
        )
    return None


def _waits_for_message(state: State) -> bool:
    return state.wait is not None and state.wait.op in POINT_TO_POINT


def _often_before(state: State) -> bool:
    """The rank has made the same call at the same line before, and it had returned."""
    assert state.wait is not None
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.op == state.wait.op and call.left_at is not None and not call.failed]
    return sum(call.site[:1] == state.wait.site[:1] for call in made) >= _LEAST_HABIT


def _gone_on(state: State) -> Suspect:
    assert state.seen is not None
    assert state.wait is not None
    at = views.where(state.wait.site[0]) if state.wait.site else None
    return views.rank_culprit(state.seen, f"waits in {state.wait.op}", at)


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
