"""Ranks that ran out of data, or left the loop, before the others."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import condition
from rankscope.diagnosis.divergence import Divergence, Side, event_of, site_key
from rankscope.diagnosis.facts.calls import Batches, LeftLoop, OutOfData, Perhaps
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.loaders import shortages
from rankscope.diagnosis.rules.divergence.call_facts import now, site_of, standing, suspect
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.timeline import Event
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import State, WaitGraph
from rankscope.evidence.model import Call, Frame, Loader


def short_of_data(divergence: Divergence, graph: WaitGraph, code: CodeReader) -> Finding | None:
    """One side has used up its data, or left the loop, while the other is still in it."""
    short = ran_out(graph)
    for side in divergence.sides:
        others = [rank for other in divergence.sides if other is not side for rank in other.ranks]
        if short and set(side.ranks) <= set(short):
            return _uneven(side, graph, _batches(graph), others)
    for side in divergence.sides:
        guard = code.guard(side.site) if side.event is not None else None
        if guard is not None and guard[1].on_rank:
            continue
        others = [rank for other in divergence.sides if other is not side for rank in other.ranks]
        left = _left_loop(side, divergence, graph, code)
        if left is None or as_many_rounds(side, divergence, graph) or as_many_passes(side, divergence, graph):
            continue
        return _or_passed_by(_uneven(side, graph, (left,), others), divergence, side, code)
    return None


def _or_passed_by(finding: Finding, divergence: Divergence, side: Side, code: CodeReader) -> Finding:
    """A loop with a `continue` before the call may also have been run to its end, one call short."""
    stays = [other for other in divergence.sides if other is not side and other.site]
    for found in filter(None, (code.way_past(stay.site[:1]) for stay in stays)):
        frame, branch = found
        if branch.side == "continue":
            skipping = condition(frame, branch, "leads-past", side.ranks)
            possible = Possibility("collective-skipped", "possible", Perhaps("passed-once", skipping))
            return replace(finding, alternatives=(possible,))
    return finding


def as_many_rounds(side: Side, divergence: Divergence, graph: WaitGraph) -> bool:
    """Whether the ranks that are still in the loop have made its call no more often than those that have left it: then
    they are late by a call elsewhere, and nobody ran out of data."""
    group = divergence.group
    stays = [other for other in divergence.sides if other is not side and other.event is not None and other.site]
    ranks = [rank for each in (side, *stays) for rank in each.ranks]
    first = max((min(graph.states[rank].of(group), default=0) for rank in ranks), default=0)

    def rounds(rank: int, at: Side) -> int:
        events = graph.states[rank].of(group)
        here = site_key(at.event)
        return sum(site_key(events.alike(seq)) == here for seq in events if first <= seq <= divergence.seq)

    return bool(stays) and all(
        0 < max(rounds(rank, stay) for rank in stay.ranks) <= min(rounds(rank, stay) for rank in side.ranks)
        for stay in stays
    )


def as_many_passes(side: Side, divergence: Divergence, graph: WaitGraph) -> bool:
    """The same by calls that do not communicate each time, such as backward passes under `no_sync()`."""
    stays = [other for other in divergence.sides if other is not side and other.event is not None and other.site]
    made = []
    for stay in stays:
        op = call_at(graph.states[stay.ranks[0]], stay)
        theirs = [passes(graph.states[rank], stay, op) for rank in stay.ranks]
        mine = [passes(graph.states[rank], stay, op, until=side.event) for rank in side.ranks]
        made.append((theirs, mine))
    counts = [
        (max(c for c in theirs if c is not None), min(c for c in mine if c is not None))
        for theirs, mine in made
        if None not in theirs and None not in mine
    ]
    return bool(made) and len(counts) == len(made) and all(0 < theirs <= mine for theirs, mine in counts)


def call_at(state: State, at: Side) -> str:
    """What a rank of this side called there last; on the one line of a framework many calls are made."""
    calls = state.seen.progress.calls if state.seen is not None and state.seen.progress is not None else ()
    return next((call.op for call in reversed(calls) if _is_at(call, at)), "")


def passes(state: State, at: Side, op: str, until: Event | None = None) -> int | None:
    """How often the rank made the call that this side is in, before it came to `until`; None where its record does not
    reach back to the start."""
    progress = state.seen.progress if state.seen is not None else None
    if progress is None or not progress.calls or progress.calls[0].index != 0:
        return None
    return sum(
        call.op == op and _is_at(call, at) for call in progress.calls if until is None or call.entered_at <= until.at
    )


def _is_at(call: Call, at: Side) -> bool:
    return call.depth == 0 and tuple((frame.file, frame.line) for frame in call.site[:2]) == site_key(at.event)


def _left_loop(side: Side, divergence: Divergence, graph: WaitGraph, code: CodeReader) -> LeftLoop | None:
    """By the calls at which they parted: one lies in a loop, the other behind it."""
    stays = [other for other in divergence.sides if other is not side]
    if _took_as_many_batches(side.ranks, [rank for stay in stays for rank in stay.ranks], graph):
        return None
    left: tuple[Frame, int] | None = None
    for stay in stays:
        left = code.left_loop(_frames_at(stay, graph), _frames_at(side, graph))
        if left is None and side.event is not None and _was_there(side, stay, divergence, graph):
            left = code.ended_loop(stay.site, side.site)
        if left is None or _step_of(stay, graph) < _step_of(side, graph):
            return None
    if left is None:
        return None
    frame, line = left
    return LeftLoop(side.ranks, Where(frame.file, line, frame.function))


def _was_there(side: Side, stay: Side, divergence: Divergence, graph: WaitGraph) -> bool:
    """The call before was, on this side too, the one that the others make once more."""
    before = [event_of(graph.states[rank], divergence.group, divergence.seq - 1) for rank in side.ranks]
    return bool(stay.site) and all(event is not None and event.site == stay.site for event in before)


def _frames_at(side: Side, graph: WaitGraph) -> tuple[Frame, ...]:
    """The user's frames above the call that the side made; where its ranks made none, where they stand."""
    return side.site if side.event is not None and side.site else _user_frames(graph.states[side.ranks[0]])


def _step_of(side: Side, graph: WaitGraph) -> int:
    if side.event is not None and side.event.step >= 0:
        return side.event.step
    return min(_steps(graph.states[rank]) for rank in side.ranks)


def _took_as_many_batches(ranks: tuple[int, ...], others: list[int], graph: WaitGraph) -> bool:
    mine = [loader for rank in ranks if (loader := _loader(graph.states[rank])) is not None]
    theirs = [loader for rank in others if (loader := _loader(graph.states[rank])) is not None]
    return bool(mine and theirs) and min(loader.batches for loader in mine) >= max(loader.batches for loader in theirs)


def _loader(state: State) -> Loader | None:
    return state.seen.progress.loader if state.seen is not None and state.seen.progress is not None else None


def _user_frames(state: State) -> tuple[Frame, ...]:
    thread = views.newest_main_thread(state.seen) if state.seen is not None else None
    if thread is not None:
        return tuple(frame for frame in thread.frames if frame.user)
    return site_of(state)


def _steps(state: State) -> int:
    return state.seen.progress.steps if state.seen is not None and state.seen.progress is not None else 0


def ran_out(graph: WaitGraph) -> tuple[int, ...]:
    """Ranks that came to the end of a loader before another rank did."""
    return tuple(
        shortages(
            {
                rank: state.seen.progress
                for rank, state in graph.states.items()
                if state.seen is not None and state.seen.progress is not None
            }
        )
    )


def _batches(graph: WaitGraph) -> tuple[Batches, ...]:
    loaders = {rank: _loader(state) for rank, state in graph.states.items()}
    return tuple(
        Batches(rank, loader.batches, loader.exhausted) for rank, loader in loaders.items() if loader is not None
    )


def _went_on_to(side: Side, graph: WaitGraph) -> Where | None:
    """The line of the call that came next, in any group: where its GPU waits in it, the program may be further on."""
    if side.event is not None and side.site:
        return views.where(side.site[0])
    state = graph.states[side.ranks[0]]
    event = state.wait.event if state.wait is not None else None
    return views.where(event.site[0]) if event is not None and event.site else standing(state)


def _uneven(side: Side, graph: WaitGraph, facts: tuple[Batches | LeftLoop, ...], others: list[int]) -> Finding:
    at = _went_on_to(side, graph)
    out = OutOfData(side.ranks, tuple(sorted(others)), at)
    return Finding(
        outcome="hang",
        cause="uneven-data",
        certainty="proven",
        culprits=tuple(suspect(graph.states[rank], out, at) for rank in side.ranks),
        summary=out,
        because=(*facts, now(graph)),
        fix=(Advice("same-batches"), Advice("join")),
        alternatives=(Possibility("collective-skipped", "possible", Perhaps("left-loop-otherwise")),),
        began=min((wait.since for rank in side.ranks if (wait := graph.states[rank].wait) is not None), default=None),
    )
