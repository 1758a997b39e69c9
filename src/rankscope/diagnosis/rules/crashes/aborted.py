"""Gloo ends the process that receives more than it asked for, whoever called wrongly: the record tells who did."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.divergence import Divergence, Side, find_divergence
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import Perhaps
from rankscope.diagnosis.facts.endings import GlooEnded, MetUnlike, WasAt, WrongWayUnknown
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.deaths import signal_of
from rankscope.diagnosis.rules.crashes.endings import Endings
from rankscope.diagnosis.rules.divergence.call_facts import called, ways
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Call, Evidence, Frame

_FEW = 2
"""Other ranks that must have made the very call before it says something about the rank that died in it."""


def settle_abort(endings: Endings, graph: WaitGraph, evidence: Evidence) -> Endings:
    """Where a rank died because collectives did not fit: blames who left the common way, or nobody."""
    origin = endings.origin
    if origin is None or origin.cause != "collective-mismatch":
        return endings
    aborted = tuple(
        culprit.rank for culprit in origin.culprits if culprit.rank is not None and _aborted(graph.states[culprit.rank])
    )
    if not aborted or len(aborted) < len(origin.culprits) or _others_made_it(aborted, graph):
        return endings
    divergence = _divergence(graph)
    finding = _explained(origin, aborted, divergence, graph, CodeReader(evidence))
    guilty = {culprit.rank for culprit in finding.culprits}
    return replace(
        endings, origin=finding, victims=tuple(sorted((set(endings.victims) | set(aborted)) - guilty - {None}))
    )


def _aborted(state: State) -> bool:
    ended_by = signal_of(state.seen) if state.seen is not None else None
    return ended_by is not None and ended_by[0] == signal.SIGABRT


def _others_made_it(aborted: tuple[int, ...], graph: WaitGraph) -> bool:
    """All others, at least two, have made the very call in which one rank died: it alone differed."""
    if len(aborted) > 1:
        return False
    died_in = _open_call(graph.states[aborted[0]])
    others = [state for rank, state in graph.states.items() if rank != aborted[0]]
    if died_in is None or len(others) < _FEW:
        return False
    made = _times(graph.states[aborted[0]], died_in)
    return all(_times(state, died_in, whole=True) >= made for state in others)


def _calls(state: State) -> tuple[Call, ...]:
    progress = state.seen.progress if state.seen is not None else None
    return tuple(call for call in progress.calls if call.depth == 0) if progress is not None else ()


def _open_call(state: State) -> Call | None:
    return next((call for call in _calls(state) if call.left_at is None and call.site), None)


def _times(state: State, like: Call, whole: bool = False) -> int:
    alike = [call for call in _calls(state) if call.op == like.op and call.site[:1] == like.site[:1]]
    return sum(not whole or (call.left_at is not None and not call.failed) for call in alike)


def _divergence(graph: WaitGraph) -> Divergence | None:
    groups = dict.fromkeys(
        group for state in graph.states.values() if state.timeline is not None for group in state.timeline.events
    )
    found = (graph.once(find_divergence, group) for group in groups)
    parted = next((each for each in found if each is not None and len(each.sides) > 1), None)
    if parted is None:
        return None
    return replace(parted, sides=tuple(_with_stand(side, graph) for side in parted.sides))


def _with_stand(side: Side, graph: WaitGraph) -> Side:
    """Not every collective is written down; where a rank stood at the end tells as much."""
    if side.site:
        return side
    return replace(side, site=next((at for rank in side.ranks if (at := _last_stand(graph.states[rank]))), ()))


def _last_stand(state: State) -> tuple[Frame, ...]:
    """The user's frames, innermost first, of the fatal signal, of the uncaught exception, of the call not left."""
    if state.seen is None:
        return ()
    uncaught = [error.frames for error in state.seen.exceptions if error.source == "hook"]
    called = _open_call(state)
    for frames in (state.seen.crash_stack, *uncaught[-1:], called.site if called is not None else ()):
        users = tuple(frame for frame in frames if frame.user)
        if users:
            return users
    return ()


def _explained(
    origin: Finding, aborted: tuple[int, ...], divergence: Divergence | None, graph: WaitGraph, code: CodeReader
) -> Finding:
    died = GlooEnded(aborted)
    origin = replace(origin, alternatives=(Possibility("collective-skipped", "possible", Perhaps("skipped-before")),))
    if divergence is None:
        return replace(origin, culprits=(), summary=MetUnlike((), (), died), because=(died, WrongWayUnknown()))
    decided = blame(divergence, graph.states, code)
    sides = {side.ranks: _stood(side, divergence) for side in divergence.sides}
    if not decided.ranks:
        return replace(
            origin,
            culprits=(),
            summary=MetUnlike((), tuple(sides.values()), died),
            because=(died, *sides.values(), WrongWayUnknown()),
            ways=ways(divergence),
        )
    culprits = tuple(
        views.rank_culprit(seen, sides[side.ranks], views.where(side.site[0]) if side.site else None)
        for side in divergence.sides
        for rank in side.ranks
        if rank in decided.ranks and (seen := graph.states[rank].seen) is not None
    )
    wrong = tuple(fact for ranks, fact in sides.items() if set(ranks) <= set(decided.ranks))
    others = tuple(fact for ranks, fact in sides.items() if not set(ranks) <= set(decided.ranks))
    return replace(
        origin,
        culprits=culprits,
        summary=MetUnlike(wrong, others, died),
        because=(*sides.values(), *decided.reasons, died),
    )


def _stood(side: Side, divergence: Divergence) -> Fact:
    if side.event is None and side.site:
        return WasAt(side.ranks, views.where(side.site[0]))
    return called(side, divergence)
