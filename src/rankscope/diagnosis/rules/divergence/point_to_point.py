"""Sends and receives that wait for each other in a circle, or for a rank that has gone on to a collective."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import condition
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import Circle, ExpectsMore, FewerMessages, MessageMissing, Perhaps, Skipped
from rankscope.diagnosis.finding import Finding, Possibility, Suspect, Way
from rankscope.diagnosis.rules.divergence.call_facts import (
    message,
    message_suspect,
    standing,
    suspect,
    waits_in,
)
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.timeline import POINT_TO_POINT
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Call, Frame

_LEAST_HABIT = 3
"""Earlier rounds that agree on a number of messages before it counts as the rank's habit."""
_LEAST_LONG_HABIT = 6
"""The same where it takes more than the call before to tell what comes next."""
_LONGEST_CONTEXT = 16


def messages_crossed(graph: WaitGraph, knot: frozenset[int], code: CodeReader) -> Finding:
    """Names the rank that made fewer sends or receives than in every round before, or left out a call that it had
    always made there; without such a habit, nobody."""
    ranks = tuple(sorted(knot))
    waits = tuple(message(graph.states[rank]) for rank in ranks)
    short = [fact for rank in ranks if (fact := _short_round(graph.states[rank])) is not None]
    short = short or [fact for rank in ranks if (fact := _short_step(graph.states[rank])) is not None]
    if len(short) == 1:
        return Finding(
            outcome="hang",
            cause="collective-skipped",
            certainty="proven",
            culprits=(message_suspect(graph.states[short[0].rank]),),
            summary=short[0],
            because=(short[0], *waits, Circle(ranks)),
            fix=(Advice("same-messages"),),
            alternatives=(Possibility("collective-mismatch", "possible", Perhaps("other-side-expects-more")),),
        )
    for habit in (_left_out, _left_out_before):
        left_out = {rank: call for rank in ranks if (call := habit(graph.states[rank])) is not None}
        if len(left_out) == 1:
            return _skipped(*next(iter(left_out.items())), graph, code, (*waits, Circle(ranks)))
    return Finding(
        outcome="hang",
        cause="collective-mismatch",
        certainty="proven",
        culprits=(),
        summary=Circle(ranks),
        because=(*waits, Circle(ranks)),
        fix=(Advice("one-sends"),),
        ways=tuple(Way(wait.ranks, wait.where, wait) for wait in waits),
    )


def _skipped(rank: int, call: Call, graph: WaitGraph, code: CodeReader, because: tuple[Fact, ...]) -> Finding:
    """Where the code shows what led past the call, that is the line to open."""
    state = graph.states[rank]
    at = views.where(call.site[0]) if call.site else None
    skipped = Skipped((rank,), call.op, at)
    past = code.way_past(call.site[:1]) or code.way_past(call.site)
    guard = code.nearest_condition(call.site) if past is None else None
    if guard is not None and guard[1].on_rank:
        guard = None  # the rank is who it was when it made the call before
    reasons: tuple[Fact, ...] = (skipped,)
    line = message(state).where if _awaits_message(state) else at  # a collective of all tells nothing of its messages
    if past is not None:
        leads = condition(*past, "leads-past", (rank,))
        reasons, line = (skipped, leads), leads.where
    elif guard is not None:
        keeps = condition(*guard, "keeps-from", (rank,))
        reasons, line = (skipped, keeps), keeps.where
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=(suspect(state, skipped, line),),
        summary=skipped,
        because=(*reasons, *because),
        fix=(Advice("pair-messages"), Advice("decide-together")),
        alternatives=(Possibility("collective-mismatch", "possible", Perhaps("other-side-expects-more")),),
        began=state.wait.since if state.wait is not None else None,
    )


def _left_out(state: State) -> Call | None:
    """The call that the rank had always made after those before its wait, where it waits in another now; of a rank
    whose GPU waits, before its last call."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.depth == 0 and (call.op in POINT_TO_POINT or call.seq > 0)]
    if len(made) < 2 or (made[-1].left_at is not None and not _gone_on(state)):
        return None
    now, earlier = made[-1], made[:-1]
    # After a message of a round either comes the next one or what follows the round: as many calls before it are looked
    # at as it takes to tell the two apart.
    ends = [at for at in range(len(earlier) - 1) if _alike(earlier[at], earlier[-1])]
    for length in range(1, _LONGEST_CONTEXT + 1):
        ends = [at for at in ends if at + 1 >= length and _alike(earlier[at + 1 - length], earlier[-length])]
        if len(ends) < (_LEAST_HABIT if length == 1 else _LEAST_LONG_HABIT):
            return None
        followers = [earlier[at + 1] for at in ends]
        if all(_alike(followers[-1], each) for each in followers):
            return None if _alike(followers[-1], now) else followers[-1]
    return None


def _left_out_before(state: State) -> Call | None:
    """The first call that is missing in the rank's present step, where that goes on as its steps had always gone but
    for it. A step that stops where all others go on is no such one."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    steps: dict[int, list[Call]] = {}
    for call in calls:
        if call.depth == 0 and call.step >= 0 and (call.op in POINT_TO_POINT or call.seq > 0):
            steps.setdefault(call.step, []).append(call)
    *before, now = (steps[step] for step in sorted(steps)) if steps else ([],)
    habits = Counter(tuple(map(_key, made)) for made in before[1:])  # of the oldest, a part may be lost
    mine = tuple(map(_key, now))
    if not habits or any(usual[: len(mine)] == mine for usual in habits):
        return None
    usual, times = habits.most_common(1)[0]
    at = next((at for at, (one, other) in enumerate(zip(mine, usual, strict=False)) if one != other), len(usual))
    if times < _LEAST_LONG_HABIT or mine[at:] != usual[at + 1 : at + 1 + len(mine) - at]:
        return None
    return next(made[at] for made in reversed(before) if tuple(map(_key, made)) == usual)


def _key(call: Call) -> tuple[str, int, tuple[Frame, ...]]:
    return call.op, call.peer, call.site


def _alike(one: Call, other: Call) -> bool:
    return _key(one) == _key(other)


def message_missing(graph: WaitGraph, knot: frozenset[int], code: CodeReader) -> Finding | None:
    """A rank waits for one more of the messages that it has had many of, and its peer has gone on to a collective.

    Sends and receives are matched by their number alone: one too few may have been long ago, and nothing tells a send
    that was left out from a receive too many. Nobody is named, unless the peer's own habit gives it away, or two ranks
    agree on the number against one.
    """
    for rank in sorted(knot):
        state = graph.states[rank]
        peer = graph.states.get(state.wait.peer) if state.wait is not None else None
        if state.wait is None or peer is None or peer.wait is None or peer.rank not in knot:
            continue
        if state.wait.op not in POINT_TO_POINT or peer.wait.op in POINT_TO_POINT or not _often_before(state):
            continue
        short = _short_round(peer)
        missing = MessageMissing(message(state), message(peer))
        waits = tuple(message(graph.states[other]) for other in sorted(knot) if _waits_for_message(graph.states[other]))
        left_out = {other: call for other in sorted(knot) if (call := _left_out(graph.states[other])) is not None}
        if short is None and _gone_on(peer) and left_out.keys() == {peer.rank}:
            return _skipped(peer.rank, left_out[peer.rank], graph, code, (*waits, missing))
        more = _expects_more(state, peer, graph) if short is None else None
        culprits = () if short is None else (_short_at(peer),)
        reason: tuple[Fact, ...] = tuple(each for each in (short, more) if each is not None)
        return Finding(
            outcome="hang",
            cause="collective-skipped",
            certainty="proven",
            culprits=culprits if more is None else (message_suspect(state),),
            summary=missing,
            because=(*waits, missing, *reason),
            fix=(Advice("same-messages"),),
            alternatives=(Possibility("uneven-data", "possible", Perhaps("fewer-batches")),),
            ways=() if reason else tuple(Way(wait.ranks, wait.where, wait) for wait in (missing.wait, missing.gone)),
        )
    return None


def messages_left_out(graph: WaitGraph, knot: frozenset[int], code: CodeReader) -> Finding | None:
    """A rank has come again to a collective of its rounds without the messages that had always come before it there,
    and others wait for theirs. None where several have, or none."""
    states = [graph.states[rank] for rank in sorted(knot)]
    waits = tuple(message(state) for state in states if _awaits_message(state))
    left_out = [(state, call) for state in states if (call := _left_out(state)) is not None]
    if not waits or len(left_out) != 1:
        return None
    state, call = left_out[0]
    if call.op not in POINT_TO_POINT or _awaits_message(state) or not _came_here_before(state):
        return None
    return _skipped(state.rank, call, graph, code, (*waits, waits_in(state, at=standing(state))))


def _awaits_message(state: State) -> bool:
    return _waits_for_message(state) or (state.wait is not None and bool(state.wait.candidates))


def _came_here_before(state: State) -> bool:
    """The call in which the rank stands is one of its rounds, not what follows them."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.depth == 0 and call.seq > 0]
    return bool(made) and sum(_alike(made[-1], call) for call in made[:-1]) >= _LEAST_HABIT


def _expects_more(state: State, peer: State, graph: WaitGraph) -> ExpectsMore | None:
    """The peer has, in every step, exchanged as many messages with a third rank as with the one that waits; so it did
    in this one, and both have gone on: two ranks agree on the number, and the one that waits expects more."""
    by_step = _by_step(peer)
    if len(by_step) <= _LEAST_HABIT or state.wait is None:
        return None
    steps = sorted(by_step)[1:]  # of the oldest, a part may be lost
    for third in sorted(graph.deadlocked - {state.rank, peer.rank}):
        wait = graph.states[third].wait
        if wait is None or peer.wait is None or (wait.group, wait.op) != (peer.wait.group, peer.wait.op):
            continue
        if _left_out(peer) is not None and _left_out(graph.states[third]) is None:
            continue  # the peer alone left out what it had always done next; at the end of a loop both do
        if all(0 < by_step[step][third] == by_step[step][state.rank] for step in steps):
            return ExpectsMore(state.rank, tuple(sorted((peer.rank, third))), by_step[steps[-1]][third])
    return None


def _by_step(state: State) -> dict[int, Counter[int]]:
    """Optimizer step → with whom the rank exchanged messages in it, and how many; the steps that are known."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    found: dict[int, Counter[int]] = {}
    for call in calls:
        known = call.depth == 0 and call.peer >= 0 and call.step >= 0
        if call.op in POINT_TO_POINT and known and call.left_at is not None:
            found.setdefault(call.step, Counter())[call.peer] += 1
    return found


def _waits_for_message(state: State) -> bool:
    return state.wait is not None and state.wait.op in POINT_TO_POINT


def _often_before(state: State) -> bool:
    """The rank has made the same call at the same line before, and it had returned."""
    assert state.wait is not None
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.op == state.wait.op and call.left_at is not None and not call.failed]
    return sum(call.site[:1] == state.wait.site[:1] for call in made) >= _LEAST_HABIT


def _short_round(state: State) -> FewerMessages | None:
    """The last whole run of equal messages, where it is shorter than all such runs before."""
    runs = _runs(state)
    # A rank that waits in a message is in the middle of its last run; one that has gone on has ended it.
    last = len(runs) - (1 if _gone_on(state) else 2)
    if last < 1:
        return None
    (op, peer), length = runs[last][0], len(runs[last][1])
    habits = Counter(len(made) for key, made in runs[1:last] if key == (op, peer))
    if len(habits) != 1 or sum(habits.values()) < _LEAST_HABIT:
        return None
    usual = next(iter(habits))
    at = message(state).where if state.wait is not None else None
    return FewerMessages(state.rank, op, peer, length, usual, at) if length < usual else None


def _short_step(state: State) -> FewerMessages | None:
    """Of a program that has run ahead of its GPU: fewer messages in its last step than in every step before."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.depth == 0 and call.op in POINT_TO_POINT]
    if not made or any(call.left_at is None for call in made):
        return None  # it stands in the middle of a step
    steps = Counter(call.step for call in made)
    last, *before = sorted(steps, reverse=True)
    habits = {steps[step] for step in before[:-1]}  # of the oldest, a part may be lost
    if len(before) <= _LEAST_LONG_HABIT or len(habits) != 1 or steps[last] >= (usual := next(iter(habits))):
        return None
    return FewerMessages(state.rank, made[-1].op, made[-1].peer, steps[last], usual, message(state).where)


def _runs(state: State) -> list[tuple[tuple[str, int], list[Call]]]:
    """Messages of one kind in a row; of a rank that has gone on to a collective, between two collectives."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    made = [call for call in calls if call.depth == 0 and (call.op in POINT_TO_POINT or _gone_on(state))]
    made = [call for call in made if call.op != "Work.wait"]
    runs = [(key, list(group)) for key, group in groupby(made, key=lambda call: (call.op, call.peer))]
    return [(key, group) for key, group in runs if key[0] in POINT_TO_POINT]


def _gone_on(state: State) -> bool:
    """It waits in a collective on its GPU: all its messages were enqueued before."""
    event = state.wait.event if state.wait is not None else None
    return event is not None and event.backend == "nccl" and not event.messages


def _short_at(state: State) -> Suspect:
    """Named with the line of its messages, where the program has run on far beyond them."""
    runs = _runs(state)
    site = runs[-1][1][-1].site if _gone_on(state) and runs else ()
    return suspect(state, waits_in(state), views.where(site[0])) if site else message_suspect(state)
