"""Messages on a GPU that are others than the rank had always exchanged there: a wrong peer, one too many or too few."""

from __future__ import annotations

from collections import Counter

import msgspec

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.calls import FewerMessages, OtherPeers, Perhaps
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.call_facts import message
from rankscope.diagnosis.timeline import Event, Message
from rankscope.diagnosis.wait_graph import State, WaitGraph

_LEAST_HABIT = 3
"""Earlier exchanges that agree before they count as the rank's habit."""


class _Odd(msgspec.Struct, frozen=True):
    state: State
    event: Event
    usual: Counter[Message]
    times: int

    @property
    def made(self) -> Counter[Message]:
        return Counter(self.event.messages)


def explain_odd_batch(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """Asked where somebody waits for a message on its GPU. Of the ranks that cannot go on, the only one whose last
    exchange was another than all those before from the same place; None where there are several, or none."""
    waits = [state for rank in sorted(knot) if (state := graph.states[rank]).wait is not None]
    waiting = [state for state in waits if state.wait is not None and state.wait.event and state.wait.event.messages]
    if not waiting:
        return None
    odd = [found for rank in sorted(knot) if (found := _odd(graph.states[rank])) is not None]
    return _finding(odd[0], tuple(waiting)) if len(odd) == 1 else None


def _odd(state: State) -> _Odd | None:
    """The newest exchange, if it differs from every one before that was made from there. Only what the GPU has not
    finished, or has finished last, can be what the others wait for."""
    messages = state.timeline.messages if state.timeline is not None else ()
    last = next((event for event in messages if not event.done), messages[-1] if messages else None)
    if last is None or not last.site:
        return None
    before = [Counter(event.messages) for event in messages if event.at < last.at and event.site == last.site]
    if len(before) < _LEAST_HABIT or any(each != before[0] for each in before):
        return None
    return _Odd(state, last, before[0], len(before)) if Counter(last.messages) != before[0] else None


def _finding(odd: _Odd, waiting: tuple[State, ...]) -> Finding | None:
    assert odd.state.seen is not None
    rank = odd.state.rank
    at = views.where(odd.event.site[0])
    made, usual = odd.made.total(), odd.usual.total()
    new = tuple(sorted({each.peer for each in odd.made - odd.usual}))
    gone = tuple(sorted({each.peer for each in odd.usual - odd.made}))
    fact = (
        OtherPeers(rank, new, gone, odd.times, at)
        if made == usual
        else FewerMessages(rank, odd.event.op, -1, made, usual, at)
    )
    return Finding(
        outcome="hang",
        cause="collective-mismatch" if made == usual else "collective-skipped",
        certainty="proven",
        culprits=(views.rank_culprit(odd.state.seen, fact, at),),
        summary=fact,
        because=(fact, *(message(state) for state in waiting)),
        fix=(Advice("check-peers" if made == usual else "pair-messages"),),
        alternatives=(
            Possibility(
                "collective-skipped" if made == usual else "collective-mismatch",
                "possible",
                Perhaps("peer-left-out-message" if made == usual else "wrong-peer-or-tag"),
            ),
        ),
        began=odd.event.at,
    )
