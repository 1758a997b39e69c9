"""Sends and receives that are meant for each other and do not meet: another peer, another tag, one left out."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rules.divergence.point_to_point_words import message_culprit, message_line
from rankscope.diagnosis.timeline import BEGUN
from rankscope.diagnosis.waiting import messages_begun
from rankscope.diagnosis.waits import State, WaitGraph
from rankscope.evidence.model import Call

_SENDS = frozenset({"send", "send_object_list"})
_RECEIVES = frozenset({"recv", "recv_object_list"})
_LEAST_HABIT = 3
"""Earlier calls that agree before they count as the rank's habit."""


def explain_misdirected(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """Who sends to, or receives from, another rank than ever before, or leaves a message out of its batch."""
    return _other_peer(graph, knot) or _other_tag(graph, knot) or _short_batch(graph, knot)


def _other_peer(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """A rank waits for a message with one peer, while the peer that it always had there waits for it."""
    for rank, usual in permutations(sorted(knot), 2):
        state, partner = graph.states[rank], graph.states[usual]
        if not _pair(partner, state) or state.wait is None or state.wait.peer == usual:
            continue
        habit = _habit(state)
        if sum(habit.values()) < _LEAST_HABIT or set(habit) != {usual}:
            continue
        text = f"rank {rank} is in {state.wait.op} with rank {state.wait.peer}, while rank {usual} waits for it"
        at = views.place(views.where(state.wait.site[0])) if state.wait.site else views.NO_LINE
        before = f"all {habit[usual]} times before, rank {rank} had made it with rank {usual}"
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="proven",
            culprits=(message_culprit(state),),
            summary=f"{text}: the {state.wait.op} at {at} names the wrong peer",
            because=(*(message_line(graph.states[each]) for each in sorted(knot)), before),
            fix=(
                "let every send name the rank that receives it, and every recv the rank that sends: check src and dst",
            ),
            alternatives=(
                Possibility("collective-skipped", "possible", f"rank {state.wait.peer} may have left out its message"),
            ),
        )
    return None


def _other_tag(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """One sends to the other, who receives from it, and still both wait: these are two different messages."""
    for one, other in permutations(sorted(knot), 2):
        sender, receiver = graph.states[one], graph.states[other]
        if not _pair(sender, receiver) or sender.wait is None or receiver.wait is None:
            continue
        if sender.wait.op not in _SENDS or receiver.wait.peer != one:
            continue
        apart = sender.wait.group != receiver.wait.group
        told = "their process groups differ" if apart else "their tags may differ"
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="proven" if apart else "likely",
            culprits=tuple(message_culprit(graph.states[rank]) for rank in sorted((one, other))),
            summary=f"{message_line(sender)}, and {message_line(receiver)}: these do not meet, {told}",
            because=(
                message_line(sender),
                message_line(receiver),
                f"a send that finds its recv returns once the message is there: {told}",
            ),
            fix=(
                "give both calls the same tag and the same group",
                "derive the tag from what both sides know, as the step or the number of the micro-batch",
            ),
            alternatives=(
                Possibility("collective-skipped", "possible", "one side may be a message behind the other"),
                *(() if apart else (Possibility("slow-rank", "possible", "a large message may still be under way"),)),
            ),
        )
    return None


def _short_batch(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """Somebody waits for a message of a batch, and one rank's last batch had fewer messages than all before."""
    waits = [state for rank in sorted(knot) if (state := graph.states[rank]).wait is not None]
    waiting = [state for state in waits if state.wait is not None and state.wait.op in BEGUN]
    if not waiting:
        return None
    short = {rank: found for rank in sorted(knot) if (found := _shorter(graph.states[rank])) is not None}
    lines = tuple(message_line(state) for state in waiting)
    culprits: tuple[Suspect, ...] = ()
    summary = f"{lines[0]}, which no rank makes the other half of"
    reasons: tuple[str, ...] = ()
    if len(short) == 1:
        rank, (call, made, usual) = next(iter(short.items()))
        seen = graph.states[rank].seen
        at = views.where(call.site[0]) if call.site else None
        text = f"rank {rank} began {made} of its usual {usual} messages at {views.place(at)}"
        assert seen is not None
        culprits = (views.rank_culprit(seen, f"began {made} of {usual} messages and went on", at),)
        summary, reasons = text, (text,)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=culprits,
        summary=summary,
        because=(*reasons, *lines, "every rank that the message could come from waits itself"),
        fix=("make both sides agree on the number of messages: each isend needs its irecv, on every rank",),
        alternatives=(Possibility("collective-mismatch", "possible", "a message may name the wrong peer or tag"),),
    )


def _pair(one: State, other: State) -> bool:
    """`one` waits in a message with `other`, who waits in one of the other direction."""
    if one.wait is None or other.wait is None or one.wait.peer != other.rank:
        return False
    return (one.wait.op in _SENDS and other.wait.op in _RECEIVES) or (
        one.wait.op in _RECEIVES and other.wait.op in _SENDS
    )


def _calls(state: State) -> tuple[Call, ...]:
    return state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()


def _habit(state: State) -> Counter[int]:
    """Peer → how often the rank had made the call it waits in with that peer, from the very same place."""
    wait = state.wait
    if wait is None:
        return Counter()
    return Counter(
        call.peer
        for call in _calls(state)
        if call.op == wait.op and call.site == wait.site and call.left_at is not None and not call.failed
    )


def _shorter(state: State) -> tuple[Call, int, int] | None:
    """The last batch of messages, how many it had, and how many every one before from there."""
    batches: list[tuple[Call, int]] = []
    inside = {call.index for call in messages_begun(_calls(state))}
    for call in _calls(state):
        if call.op == "batch_isend_irecv" and call.depth == 0:
            batches.append((call, 0))
        elif batches and call.depth > 0 and call.index in inside:
            batches[-1] = (batches[-1][0], batches[-1][1] + 1)
    if not batches:
        return None
    last, made = batches[-1]
    before = {count for call, count in batches[:-1] if call.site == last.site}
    if len(before) != 1 or len(batches) <= _LEAST_HABIT:
        return None
    usual = next(iter(before))
    return (last, made, usual) if made < usual else None
