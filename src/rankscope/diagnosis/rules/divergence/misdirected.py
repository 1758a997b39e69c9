"""Sends and receives that are meant for each other and do not meet: another peer, another tag, one left out."""

from __future__ import annotations

from collections import Counter

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.calls import FewerMessages, NobodyMakes, NoMeeting, Perhaps, WrongPeer
from rankscope.diagnosis.finding import Finding, Possibility, Suspect, Way
from rankscope.diagnosis.rank_wait import messages_begun
from rankscope.diagnosis.rules.divergence.call_facts import message, message_suspect
from rankscope.diagnosis.rules.divergence.odd_batch import explain_odd_batch
from rankscope.diagnosis.timeline import BEGUN
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Call

_SENDS = frozenset({"send", "send_object_list"})
_RECEIVES = frozenset({"recv", "recv_object_list"})
_LEAST_HABIT = 3
"""Earlier calls that agree before they count as the rank's habit."""


def explain_misdirected(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """Who sends to, or receives from, another rank than ever before, or leaves a message out of its batch."""
    return (
        _other_peer(graph, knot)
        or explain_odd_batch(graph, knot)
        or _other_tag(graph, knot)
        or _short_batch(graph, knot)
    )


def _other_peer(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """A rank waits for a message with one peer, while the peer that it always had there waits for it."""
    waiting_for: dict[int, list[int]] = {}
    for usual in sorted(knot):
        wait = graph.states[usual].wait
        if wait is not None and wait.peer != usual:
            waiting_for.setdefault(wait.peer, []).append(usual)
    pairs = ((rank, usual) for rank in sorted(knot) for usual in waiting_for.get(rank, ()))
    for rank, usual in pairs:
        state, partner = graph.states[rank], graph.states[usual]
        if not _pair(partner, state) or state.wait is None or state.wait.peer == usual:
            continue
        habit = _habit(state)
        if sum(habit.values()) < _LEAST_HABIT or set(habit) != {usual}:
            continue
        wrong = WrongPeer(message(state), usual, habit[usual])
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="proven",
            culprits=(message_suspect(state),),
            summary=wrong,
            because=(*(message(graph.states[each]) for each in sorted(knot)), wrong),
            fix=(Advice("check-peers"),),
            alternatives=(Possibility("collective-skipped", "possible", Perhaps("peer-left-out-message")),),
        )
    return None


def _other_tag(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """One sends to the other, who receives from it, and still both wait: these are two different messages."""
    for one in sorted(knot):
        sender = graph.states[one]
        if sender.wait is None or sender.wait.peer == one or sender.wait.peer not in knot:
            continue
        receiver = graph.states[sender.wait.peer]
        if not _pair(sender, receiver) or receiver.wait is None:
            continue
        if sender.wait.op not in _SENDS or receiver.wait.peer != one:
            continue
        if any(wait.event is not None and wait.event.messages for wait in (sender.wait, receiver.wait)):
            continue  # a GPU knows no tags: these have met, or will once what is before them is over
        apart = sender.wait.group != receiver.wait.group
        meeting = NoMeeting(message(sender), message(receiver), apart)
        behind = Possibility("collective-skipped", "possible", Perhaps("message-behind"))
        large = Possibility("slow-rank", "possible", Perhaps("large-message"))
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="proven" if apart else "likely",
            culprits=(),
            summary=meeting,
            because=(meeting.send, meeting.receive, meeting),
            fix=(Advice("same-tag"), Advice("shared-tag")),
            alternatives=(behind,) if apart else (behind, large),
            ways=tuple(Way(wait.ranks, wait.where, wait) for wait in (meeting.send, meeting.receive)),
        )
    return None


def _short_batch(graph: WaitGraph, knot: frozenset[int]) -> Finding | None:
    """Somebody waits for a message of a batch, and one rank's last batch had fewer messages than all before."""
    waits = [state for rank in sorted(knot) if (state := graph.states[rank]).wait is not None]
    waiting = [state for state in waits if state.wait is not None and state.wait.op in BEGUN]
    if not waiting:
        return None
    short = {rank: found for rank in sorted(knot) if (found := _shorter(graph.states[rank])) is not None}
    halves = tuple(message(state) for state in waiting)
    culprits: tuple[Suspect, ...] = ()
    summary: FewerMessages | NobodyMakes = NobodyMakes(halves[0])
    if len(short) == 1:
        rank, (call, made, usual) = next(iter(short.items()))
        seen = graph.states[rank].seen
        at = views.where(call.site[0]) if call.site else None
        summary = FewerMessages(rank, call.op, -1, made, usual, at)
        assert seen is not None
        culprits = (views.rank_culprit(seen, summary, at),)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=culprits,
        summary=summary,
        because=tuple(dict.fromkeys((summary, *halves, NobodyMakes(halves[0])))),
        fix=(Advice("pair-messages"),),
        alternatives=(Possibility("collective-mismatch", "possible", Perhaps("wrong-peer-or-tag")),),
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
