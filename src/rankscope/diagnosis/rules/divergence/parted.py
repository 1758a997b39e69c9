"""Ranks of one group whose sequences parted: a call that some skipped, made in addition, or made otherwise."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import Blame, blame
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.calls import Called, Extra, Mismatch, Perhaps, Sides, Skipped, WentOn
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rank_wait import LEAVING
from rankscope.diagnosis.rules.divergence.call_facts import (
    called,
    caller,
    first_difference,
    now,
    site_of,
    standing,
    suspect,
    waits_in,
    ways,
)
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import State, WaitGraph, members_of

_HABIT = 5
NOBODY = Blame(ranks=(), extra=False, reserved=False, reasons=())


def explain_parted(divergence: Divergence, graph: WaitGraph, code: CodeReader) -> Finding:
    """For sequences that parted, and that no more special cause explains."""
    decided = NOBODY if _somebody_unseen(divergence, graph) else blame(divergence, graph.states, code)
    if is_mismatch(divergence, code):
        return _mismatched(divergence, decided, graph)
    return skipped(divergence, decided, graph, code)


def _somebody_unseen(divergence: Divergence, graph: WaitGraph) -> bool:
    """A rank that is stuck with the others could not be compared, where some have not come to the call: it may be the
    one that keeps them from it."""
    compared = {rank for side in divergence.sides for rank in side.ranks}
    stuck = graph.deadlocked & members_of(divergence.group, graph.states)
    return bool(stuck - compared) and any(side.event is None for side in divergence.sides)


def is_mismatch(divergence: Divergence, code: CodeReader) -> bool:
    """Different operations for one another: at the same line, in the two branches of one condition, or one in place of
    another by how the sequences go on."""
    made = [side for side in divergence.sides if side.event is not None]
    if len(made) < 2:
        return False
    first, second = made[0], made[1]
    if first.event is None or second.event is None or not first.event.contradicts(second.event):
        return False
    if first.site and second.site and first.site[0] == second.site[0]:
        # Beneath one line of the user's a library goes many ways; the same operation is the same call.
        return not first.event.through or first.event.op == second.event.op
    return code.opposite_branches(first.site, second.site) is not None


def _mismatched(divergence: Divergence, decided: Blame, graph: WaitGraph) -> Finding:
    calls = tuple(called(side, divergence) for side in divergence.sides)
    culprits = tuple(
        suspect(graph.states[rank], call, _side_where(side, divergence, graph.states[rank]))
        for side, call in zip(divergence.sides, calls, strict=True)
        for rank in side.ranks
        if rank in decided.ranks
    )
    return Finding(
        outcome="hang",
        cause="collective-mismatch",
        certainty="proven",
        culprits=culprits,
        summary=Mismatch(calls),
        because=(first_difference(divergence, graph), *calls, *decided.reasons),
        fix=(Advice("same-call"), Advice("pad-first")),
        alternatives=(Possibility("collective-skipped", "possible", Perhaps("skipped-before")),),
        references=("Lightning-AI/pytorch-lightning#7773", "pytorch/pytorch#68803"),
        ways=() if culprits else ways(divergence),
        began=_began(divergence),
    )


def _side_where(side: Side, divergence: Divergence, state: State) -> Where | None:
    """The line of the call; where the sides share it, as that of a helper, the innermost on which their ways differ."""
    if not side.site:
        return standing(state)
    return caller(side, divergence) or views.where(side.site[0])


def skipped(divergence: Divergence, decided: Blame, graph: WaitGraph, code: CodeReader) -> Finding:
    """Ranks that made a call more, or one fewer, than the rest."""
    calls = {side.ranks: called(side, divergence) for side in divergence.sides}
    summary = summary_of(divergence, decided)
    culprits = []
    for side in divergence.sides:
        for rank in side.ranks:
            if rank in decided.ranks:
                state = graph.states[rank]
                extra = decided.extra and side.event is not None
                led = None if extra else _led_past(side, divergence, state, graph, code)
                if led is not None and isinstance(summary, Skipped):
                    culprits.append(suspect(state, changed(summary, ranks=(rank,)), led))
                else:
                    at = led or (_side_where(side, divergence, state) if extra else standing(state))
                    culprits.append(suspect(state, waits_in(state), at))
    because: list[Fact] = [first_difference(divergence, graph), *calls.values(), *decided.reasons]
    because += went_on(divergence, decided)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=tuple(culprits),
        summary=summary,
        because=(*because, *([now(graph)] if graph.deadlocked else [])),
        fix=(Advice("same-collectives"), Advice("one-rank-works")),
        alternatives=(Possibility("collective-mismatch", "possible", Perhaps("calls-differ")),),
        references=("huggingface/accelerate#2690",),
        ways=() if culprits else ways(divergence),
        began=_began(divergence),
    )


def _ran_on(state: State, graph: WaitGraph) -> bool:
    """The program has run on, with its GPU behind it, beyond the call that the GPU is in, or to a line on which all the
    others stand too: that line tells nothing about where they parted."""
    wait = state.wait
    if wait is None or wait.op == LEAVING:
        return wait is not None
    if wait.event is None or wait.event.backend != "nccl":
        return False
    beyond = bool(wait.event.site) and wait.event.site[:1] != wait.site[:1]
    return beyond or len({site_of(graph.states[rank])[:1] for rank in graph.deadlocked}) == 1


def _usual_line(state: State, other: State) -> bool:
    """The rank waits where it and one that did not skip the call have often called from: it has only come to the next
    call, where everybody goes."""
    wait = state.wait
    if wait is None or not wait.site:
        return False
    here = tuple((frame.file, frame.line) for frame in wait.site)
    return all(_times_called(each, here) >= _HABIT for each in (state, other))


def _times_called(state: State, here: tuple[tuple[str, int], ...]) -> int:
    timeline = state.timeline
    if timeline is None:
        return 0
    return sum(
        tuple((frame.file, frame.line) for frame in event.site) == here
        for events in timeline.events.values()
        for event in events.values()
    )


def _led_past(side: Side, divergence: Divergence, state: State, graph: WaitGraph, code: CodeReader) -> Where | None:
    """The condition that led a rank past the call, where the line on which it waits now tells nothing about that: it
    has run on, only leaves its groups, or is where everybody goes."""
    usual = next((other for other in divergence.sides if other is not side and other.site), None)
    if usual is None or not (_ran_on(state, graph) or _usual_line(state, graph.states[usual.ranks[0]])):
        return None
    led = code.way_past(usual.site) or code.nearest_condition(usual.site)
    return Where(led[0].file, led[1].line, led[0].function) if led is not None else None


def _began(divergence: Divergence) -> float | None:
    """When the ranks parted."""
    return min((side.event.at for side in divergence.sides if side.event is not None), default=None)


def summary_of(divergence: Divergence, decided: Blame) -> Fact:
    """What the headline says of ranks that made a call more, or one fewer."""
    calls = tuple(called(side, divergence) for side in divergence.sides)
    if not decided.ranks:
        return Sides(calls)
    odd = next((side for side in divergence.sides if set(side.ranks) <= set(decided.ranks)), divergence.sides[-1])
    other = next(side for side in divergence.sides if side is not odd)
    call = called(odd, divergence)
    if decided.extra and isinstance(call, Called):
        return Extra(call)
    if other.event is None:
        return Sides(calls)
    at = views.where(other.site[0]) if other.site else None
    count = odd.count if odd.kind == "skipped" else 1
    return Skipped(tuple(sorted(decided.ranks)), other.event.op, at, max(count, 1))


def went_on(divergence: Divergence, decided: Blame) -> list[WentOn]:
    """How the sequences go on after the difference, where they do and it is the blamed ranks that differ."""
    return [
        WentOn(side.ranks, side.kind, side.count)
        for side in divergence.sides
        if side.kind is not None and side.kind != "unclear" and set(side.ranks) <= set(decided.ranks)
    ]
