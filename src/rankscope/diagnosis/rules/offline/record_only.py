"""Hangs of which only flight-recorder dumps are left: who has not entered what the others wait in."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.divergence import Side, find_divergence
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.logs import May
from rankscope.diagnosis.facts.recorded import (
    AwaitedUndumped,
    DidNotEnter,
    EitherSide,
    EnteredNotFinished,
    LastRecorded,
    NoDump,
    OnlyTheyCall,
    RecordedCall,
    TheFewer,
    Unconditional,
    Undecided,
    WaitsForUndumped,
    WaitsInRecorded,
)
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rank_wait import recorded_only
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.wait_graph import State, WaitGraph, members_of
from rankscope.evidence.model import Evidence

_FIX = (Advice("after-last-collective"), Advice("run-to-see-outside"))
_STACK = Advice("dump-its-stack")
_LOG = Advice("give-its-log")
_SKIPPED = ("pytorch/pytorch#54059",)


def explain_absent(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """Ranks wait in a collective that others have not entered, and dumps are all there is. None where somebody was
    seen otherwise: then the stacks tell more."""
    if not evidence.ranks or not all(recorded_only(seen) for seen in evidence.ranks):
        return None
    waits = [state for state in graph.states.values() if state.wait is not None and state.wait.group]
    if not waits:
        return None
    first = min(waits, key=lambda state: state.wait.since if state.wait is not None else 0.0)
    waiting = tuple(state.rank for state in waits if state.wait is not None and _same_place(state, first))
    roots = [rank for rank in graph.edges.get(first.rank, ()) if graph.states[rank].kind != "waiting"]
    absent = tuple(sorted(roots))
    if not absent:
        return None
    unseen = tuple(rank for rank in absent if not _has_dump(graph.states[rank]))
    if unseen and len(unseen) < len(absent):
        return _undecided(waiting, absent, first, unseen)
    if unseen:
        return _without_dump(unseen, waiting, first, graph)
    return _not_joined(absent, waiting, first, graph, evidence)


def _has_dump(state: State) -> bool:
    return state.seen is not None and "collectives" not in state.seen.missing


def _same_place(state: State, other: State) -> bool:
    one, two = state.wait, other.wait
    return one is not None and two is not None and (one.group, one.seq) == (two.group, two.seq)


def _call_of(state: State) -> RecordedCall:
    wait = state.wait
    assert wait is not None
    return RecordedCall(wait.op, wait.seq, wait.group, views.where(wait.site[0]) if wait.site else None)


def _last_call(state: State) -> RecordedCall | None:
    """What the rank's record ends with."""
    entries = state.seen.collectives if state.seen is not None else ()
    if not entries:
        return None
    newest = max(entries, key=lambda entry: entry.record_id)
    site = views.where(views.innermost_user_frame(newest.frames))
    return RecordedCall(newest.op, 0 if newest.p2p else newest.seq, newest.group, site)


def _not_joined(
    absent: tuple[int, ...], waiting: tuple[int, ...], first: State, graph: WaitGraph, evidence: Evidence
) -> Finding:
    wait = first.wait
    assert wait is not None
    call = _call_of(first)
    code = CodeReader(evidence)
    decided = None
    divergence = graph.once(find_divergence, wait.group)
    if divergence is not None and len(divergence.sides) > 1:
        decided = blame(divergence, graph.states, code)
    readable = any(source.file == frame.file for source in evidence.sources for frame in wait.site[:1])
    seen: tuple[Fact, ...] = (
        EnteredNotFinished(waiting, call),
        *(LastRecorded(rank, _last_call(graph.states[rank])) for rank in absent[:3]),
    )
    if decided is not None and decided.reserved:
        if set(decided.ranks) <= set(waiting):
            return _extra_call(decided.ranks, first, graph, (*seen, *decided.reasons))
        return _skipped(decided.ranks, first, graph, (*seen, *decided.reasons))
    if 2 * len(absent) < len(absent) + len(waiting):
        return _skipped(absent, first, graph, (*seen, TheFewer()))
    if readable and code.guard(wait.site) is None and len(absent) <= len(waiting):
        return _skipped(absent, first, graph, (*seen, Unconditional()))
    return _undecided(waiting, absent, first, ())


def _skipped(guilty: tuple[int, ...], first: State, graph: WaitGraph, because: tuple[Fact, ...]) -> Finding:
    call = _call_of(first)
    culprits = []
    for rank in guilty:
        state = graph.states[rank]
        if state.seen is not None:
            last = _last_call(state)
            at = last.where if last is not None else None
            culprits.append(views.rank_culprit(state.seen, DidNotEnter((rank,), call, last), at))
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=tuple(culprits),
        summary=DidNotEnter(guilty, call, _last_call(graph.states[guilty[0]])),
        because=because,
        fix=_FIX,
        alternatives=_others(guilty),
        references=_SKIPPED,
        next=(_STACK,),
    )


def _others(absent: tuple[int, ...]) -> tuple[Possibility, ...]:
    """A dump shows nothing but collectives."""
    return (
        Possibility("blocked-call", "possible", May(absent, "block"), _STACK),
        Possibility("slow-rank", "possible", May(absent, "work"), Advice("dump-again")),
        Possibility("exception", "possible", May(absent, "failed-after-dump"), _LOG),
    )


def _extra_call(guilty: tuple[int, ...], first: State, graph: WaitGraph, because: tuple[Fact, ...]) -> Finding:
    """The waiting ones are the odd ones: their call is reserved for them."""
    call = _call_of(first)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=tuple(
            views.rank_culprit(seen, WaitsInRecorded(_call_of(graph.states[rank])), call.where)
            for rank in guilty
            if (seen := graph.states[rank].seen) is not None
        ),
        summary=OnlyTheyCall(guilty, call),
        because=because,
        fix=(Advice("out-of-the-branch"), Advice("no-collectives-on-one-rank")),
        references=(*_SKIPPED, "huggingface/accelerate#2690"),
        next=(Advice("others-past-this-line"),),
    )


def _undecided(waiting: tuple[int, ...], absent: tuple[int, ...], first: State, unseen: tuple[int, ...]) -> Finding:
    """Who is at fault cannot be told: nobody is named."""
    call = _call_of(first)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=Undecided(waiting, absent, unseen, call),
        because=(EnteredNotFinished(waiting, call), EitherSide()),
        fix=_FIX,
        alternatives=_others(absent),
        next=(_STACK,),
    )


def _without_dump(unseen: tuple[int, ...], waiting: tuple[int, ...], first: State, graph: WaitGraph) -> Finding:
    """All dumps there are wait in one collective, and only ranks without a dump could have kept it from finishing."""
    wait = first.wait
    assert wait is not None
    call = _call_of(first)
    members = members_of(wait.group, graph.states)
    only = 2 * len(unseen) < len(members) and set(waiting) | set(unseen) >= members
    culprits = tuple(Suspect(rank, None, None, "rank", None, AwaitedUndumped(call)) for rank in unseen)
    return Finding(
        outcome="hang",
        cause="collective-skipped" if wait.seq > 1 else "rank-missing",
        certainty="likely" if only else "possible",
        culprits=culprits if only else (),
        summary=WaitsForUndumped(waiting, unseen, call, only),
        because=(EnteredNotFinished(waiting, call), NoDump(unseen, only)),
        fix=(Advice("look-at-rank", ranks=_numbers(unseen)), Advice("let-every-rank-dump")),
        alternatives=(
            Possibility("rank-left", "possible", May(unseen, "ended"), _LOG),
            Possibility("killed", "possible", May(unseen, "killed"), _LOG),
            *_others(unseen)[:1],
        ),
        next=(Advice("find-dump-or-log", ranks=_numbers(unseen)), _STACK),
    )


def _numbers(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:12]))


def softened(finding: Finding, graph: WaitGraph, evidence: Evidence) -> Finding:
    """Dumps are not all taken at one instant: only what cannot come loose by waiting is proven by them."""
    if finding.certainty != "proven" or finding.outcome != "hang":
        return finding
    if not any(recorded_only(seen) for seen in evidence.ranks) or _never_match(finding, graph):
        return finding
    return replace(finding, certainty="likely", next=finding.next or (_STACK,))


def _never_match(finding: Finding, graph: WaitGraph) -> bool:
    """All ranks that were seen entered the place, with operations that do not fit one another."""
    if finding.cause not in ("collective-mismatch", "collective-skipped"):
        return False
    for group in {state.wait.group for state in graph.states.values() if state.wait is not None and state.wait.group}:
        divergence = graph.once(find_divergence, group)
        if divergence is not None and _all_entered(divergence.sides):
            signatures = {side.event.signature() for side in divergence.sides if side.event is not None}
            if len(signatures) > 1:
                return True
    return False


def _all_entered(sides: tuple[Side, ...]) -> bool:
    return len(sides) > 1 and all(side.event is not None for side in sides)
