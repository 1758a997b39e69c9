"""Ranks that wait for one another and can never go on: skipped, mismatched and crossed collectives, uneven data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.blame import Blame, blame
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.divergence import Divergence, Side, find_divergence
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.misdirected import explain_misdirected
from rankscope.diagnosis.rules.divergence.passes import uneven_passes
from rankscope.diagnosis.rules.divergence.point_to_point import message_missing, messages_crossed
from rankscope.diagnosis.rules.divergence.side_words import side_text
from rankscope.diagnosis.rules.divergence.uneven import short_of_data
from rankscope.diagnosis.rules.divergence.waiting_words import (
    call_text,
    group_text,
    now_text,
    site_of,
    standing,
    waiting_culprit,
)
from rankscope.diagnosis.timeline import POINT_TO_POINT
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.waiting import Wait
from rankscope.diagnosis.waits import State, WaitGraph, innermost_knot, members_of
from rankscope.evidence.model import Evidence, Frame

_SKIPPED_FIX = (
    "make every rank reach the same collectives in the same order: move the call out of the branch, "
    "or take the branch on all ranks",
    "where only one rank should work (evaluation, saving), keep collectives out of it: use model.module, "
    "not the DDP wrapper, and put the barrier after the branch",
)
_MISMATCH_FIX = (
    "make all ranks call the same operation with the same size, dtype and root at this place",
    "pad or gather sizes first where the data differs from rank to rank",
)
_CYCLE_FIX = (
    "use the process groups in one fixed order on every rank (sort by group, not by rank, dict or arrival)",
    "or wait for the first collective before entering one of another group",
)


def explain_deadlock(graph: WaitGraph, evidence: Evidence) -> Finding:
    """For a graph whose `deadlocked` is not empty and holds no rank that waits for an ended one."""
    code = CodeReader(evidence)
    knot = innermost_knot(graph)
    crossed = _crossed_groups(graph, knot)
    passed = _passed_by(crossed, graph, code)
    if crossed and passed is None and not _reserved_call(crossed, graph, code):
        return _order_cycle(crossed, graph)
    misdirected = explain_misdirected(graph, knot)
    if misdirected is not None:
        return misdirected
    if all(_wait_op(graph, rank) in POINT_TO_POINT for rank in knot):
        return messages_crossed(graph, knot)
    missing = message_missing(graph, knot)
    if missing is not None:
        return missing
    waits = Counter(
        wait.group for rank in knot if (wait := graph.states[rank].wait) is not None and wait.op not in POINT_TO_POINT
    )
    for group in sorted(waits, key=lambda group: (group != passed, -waits[group], group)):
        divergence = find_divergence(group, graph.states) if group else None
        if divergence is not None and len(divergence.sides) > 1:
            return _diverged(divergence, graph, code)
        if group == passed:
            break  # the ranks parted here, unseen; where the others wait is a consequence
    return _unexplained(graph)


def explain_paired_call(graph: WaitGraph, evidence: Evidence, certainty: Certainty) -> Finding | None:
    """An extra collective under a condition on the rank that paired with a later one of the others: since then the
    sequences are out of step, and every rank stands on an innocent line. None where no such call was made."""
    code = CodeReader(evidence)
    groups = dict.fromkeys(wait.group for rank in graph.waiting() if (wait := graph.states[rank].wait) is not None)
    for group in groups:
        divergence = find_divergence(group, graph.states) if group else None
        if divergence is None or any(side.event is None for side in divergence.sides):
            continue
        decided = blame(divergence, graph.states, code)
        if decided.reserved and decided.extra and set(decided.ranks) <= set(graph.waiting()):
            failed = any(seen.exit is not None and seen.exit.code for seen in evidence.ranks)
            finding = _skipped(divergence, decided, graph)
            return replace(finding, certainty=certainty, outcome="crash" if failed else "hang")
    return None


def _wait_op(graph: WaitGraph, rank: int) -> str:
    wait = graph.states[rank].wait
    return "" if wait is None else wait.op


def _crossed_groups(graph: WaitGraph, knot: frozenset[int]) -> dict[str, tuple[int, ...]]:
    """Group → ranks waiting in it, where the ranks of one knot wait in different groups."""
    found: dict[str, list[int]] = {}
    for rank in sorted(knot):
        wait = graph.states[rank].wait
        if wait is not None and wait.group and wait.op not in POINT_TO_POINT:
            found.setdefault(wait.group, []).append(rank)
    return {group: tuple(ranks) for group, ranks in found.items()} if len(found) > 1 else {}


def _passed_by(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> str | None:
    """The group of the call that comes earlier in straight code: the ranks at the later one will not come back to it.

    None where both calls are one line, as in a loop over the groups, or the two branches of one condition.
    """
    waits = [[wait for rank in ranks if (wait := graph.states[rank].wait) is not None] for ranks in crossed.values()]
    if len(waits) < 2 or not all(waits):
        return None
    stepped = all(wait.event is not None and wait.event.step >= 0 for group in waits for wait in group)

    def progress(wait: Wait) -> tuple[int, list[int]]:
        # Steps, where all are known, then lines from the outermost function inwards: what is smaller comes earlier.
        step = wait.event.step if stepped and wait.event is not None else 0
        return step, [frame.line for frame in reversed(_issued(wait))]

    earliest, next_ = sorted((min(group, key=progress) for group in waits), key=progress)[:2]
    for here, there in zip(reversed(_issued(earliest)), reversed(_issued(next_)), strict=False):
        if (here.file, here.function) != (there.file, there.function):
            return None
        if here.line != there.line:
            return None if code.opposite_branches((here,), (there,)) is not None else earliest.group
    return None


def _called_at(state: State) -> Where | None:
    """The line that issued the awaited collective; on a GPU the rank stands further on, where it synchronises."""
    site = _issued(state.wait) if state.wait is not None else ()
    return views.where(site[0]) if site else standing(state)


def _issued(wait: Wait) -> tuple[Frame, ...]:
    return wait.event.site if wait.event is not None and wait.event.site else wait.site


def _reserved_call(crossed: dict[str, tuple[int, ...]], graph: WaitGraph, code: CodeReader) -> bool:
    """One of the crossing calls is made under a condition on the rank that has no counterpart on the other side."""
    sites = {group: site_of(graph.states[ranks[0]]) for group, ranks in crossed.items()}
    for group, site in sites.items():
        found = code.guard(site)
        if found is None or not found[1].on_rank:
            continue
        others = [other for name, other in sites.items() if name != group]
        if not any(code.opposite_branches(site, other) for other in others):
            return True
    return False


def _order_cycle(crossed: dict[str, tuple[int, ...]], graph: WaitGraph) -> Finding:
    sizes = sorted((len(ranks) for ranks in crossed.values()), reverse=True)
    smallest = min(crossed.values(), key=len)
    # One rank against several took the other order; one against one are equally at fault.
    guilty = smallest if sizes[0] > sizes[-1] else tuple(sorted(rank for ranks in crossed.values() for rank in ranks))
    if sizes[0] == sizes[-1] and any(state.kind == "unknown" for state in graph.states.values()):
        guilty = ()
    culprits = tuple(
        waiting_culprit(state, f"waits in {call_text(state)}", _called_at(state))
        for rank in guilty
        if (state := graph.states[rank])
    )
    every = tuple(sorted(rank for ranks in crossed.values() for rank in ranks))
    parts = []
    for ranks in crossed.values():
        first = graph.states[ranks[0]]
        waits = f"{views.ranks_text(ranks)} {views.verb(ranks, 'wait')} in {call_text(first)}"
        parts.append(f"{waits} at {views.place(_called_at(first))}")
    return Finding(
        outcome="hang",
        cause="group-order-cycle",
        certainty="proven",
        culprits=culprits,
        summary=f"{views.ranks_text(guilty or every)} entered the collectives of {len(crossed)} process groups in "
        f"another order than the ranks they wait for: {'; '.join(parts)}",
        because=(*parts, "each waits for a rank that waits for it in another group: none can go on"),
        fix=_CYCLE_FIX,
        alternatives=(
            Possibility("collective-skipped", "possible", "one of the calls may be missing on the other side"),
        ),
        references=("pytorch/pytorch#25390",),
    )


def _diverged(divergence: Divergence, graph: WaitGraph, code: CodeReader) -> Finding:
    short = short_of_data(divergence, graph, code)
    if short is not None:
        return short
    uneven = uneven_passes(divergence, graph)
    if uneven is not None:
        return uneven
    decided = blame(divergence, graph.states, code)
    if _somebody_unseen(divergence, graph):
        decided = Blame(ranks=(), extra=False, reserved=False, reasons=())
    if _mismatch(divergence, code):
        return _mismatched(divergence, decided, graph)
    return _skipped(divergence, decided, graph)


def _somebody_unseen(divergence: Divergence, graph: WaitGraph) -> bool:
    """A rank that is stuck with the others could not be compared, where some have not come to the call: it may be the
    one that keeps them from it."""
    compared = {rank for side in divergence.sides for rank in side.ranks}
    stuck = graph.deadlocked & members_of(divergence.group, graph.states)
    return bool(stuck - compared) and any(side.event is None for side in divergence.sides)


def _mismatch(divergence: Divergence, code: CodeReader) -> bool:
    """Different operations for one another: at the same line, or in the two branches of one condition."""
    called = [side for side in divergence.sides if side.event is not None]
    if len(called) < 2:
        return False
    first, second = called[0], called[1]
    if first.event is None or second.event is None or not first.event.contradicts(second.event):
        return False
    if first.site and second.site and first.site[0] == second.site[0]:
        return True
    return code.opposite_branches(first.site, second.site) is not None


def _place_text(divergence: Divergence, graph: WaitGraph) -> str:
    text = f"collective {divergence.seq} of {group_text(divergence.group)} is the first on which the ranks differ"
    rounds = _rounds(divergence, graph)
    return text if rounds is None else f"{text}, {rounds}"


def _rounds(divergence: Divergence, graph: WaitGraph) -> str | None:
    """The iteration in which the ranks parted, where no optimizer step counts it: by how often a side had called."""
    if any(side.event is not None and side.event.step > 0 for side in divergence.sides):
        return None
    for side in divergence.sides:
        timeline = graph.states[side.ranks[0]].timeline
        if side.event is None or not side.site or timeline is None or timeline.oldest(divergence.group) != 1:
            continue
        made = sum(
            seq < divergence.seq and event.site[:1] == side.site[:1]
            for seq, event in timeline.events[divergence.group].items()
        )
        if made:
            at = views.place(views.where(side.site[0]))
            return f"in iteration {made + 1} of {side.event.op} at {at}"
    return None


def _mismatched(divergence: Divergence, decided: Blame, graph: WaitGraph) -> Finding:
    guilty = decided.ranks or _all_sides(divergence, graph)
    culprits = tuple(
        waiting_culprit(
            graph.states[rank],
            side_text(side, divergence).partition(" called ")[2] or "no call",
            _side_where(side, graph.states[rank]),
        )
        for side in divergence.sides
        for rank in side.ranks
        if rank in guilty
    )
    return Finding(
        outcome="hang",
        cause="collective-mismatch",
        certainty="proven",
        culprits=culprits,
        summary=f"{'; '.join(side_text(side, divergence) for side in divergence.sides)}: these never match",
        because=(
            _place_text(divergence, graph),
            *(side_text(side, divergence) for side in divergence.sides),
            *decided.reasons,
        ),
        fix=_MISMATCH_FIX,
        alternatives=(Possibility("collective-skipped", "possible", "one side may have left out a call before"),),
        references=("Lightning-AI/pytorch-lightning#7773", "pytorch/pytorch#68803"),
    )


def _all_sides(divergence: Divergence, graph: WaitGraph) -> tuple[int, ...]:
    """Everybody, where equal sides cannot be told apart; nobody, where a rank of the group was not seen: it decides."""
    ranks = {rank for side in divergence.sides for rank in side.ranks}
    seen = {rank for rank in ranks if (state := graph.states[rank].seen) is not None and state.progress is not None}
    return tuple(sorted(seen)) if seen >= members_of(divergence.group, graph.states) else ()


def _side_where(side: Side, state: State) -> Where | None:
    return views.where(side.site[0]) if side.site else standing(state)


def _skipped(divergence: Divergence, decided: Blame, graph: WaitGraph) -> Finding:
    guilty = decided.ranks or _all_sides(divergence, graph)
    culprits = []
    for side in divergence.sides:
        for rank in side.ranks:
            if rank not in guilty:
                continue
            state = graph.states[rank]
            at = _side_where(side, state) if decided.extra else standing(state)
            culprits.append(waiting_culprit(state, f"waits in {call_text(state)}", at))
    sides = [side_text(side, divergence) for side in divergence.sides]
    main = next((side for side in divergence.sides if set(side.ranks) <= set(decided.ranks)), divergence.sides[-1])
    other = next(side for side in divergence.sides if side is not main)
    if not decided.ranks:
        summary = "; ".join(sides)
    elif decided.extra and main.event is not None:
        summary = f"{side_text(main, divergence)}, which no other rank of the group calls there"
    elif other.event is not None:
        place = views.place(views.where(other.site[0])) if other.site else views.NO_LINE
        summary = f"{views.ranks_text(main.ranks)} passed by the {other.event.op} at {place} and went on"
    else:
        summary = "; ".join(sides)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven",
        culprits=tuple(culprits),
        summary=summary,
        because=(_place_text(divergence, graph), *sides, *decided.reasons, now_text(graph)),
        fix=_SKIPPED_FIX,
        alternatives=(Possibility("collective-mismatch", "possible", "the calls at this place differ"),),
        references=("pytorch/pytorch#54059", "huggingface/accelerate#2690"),
    )


def _unexplained(graph: WaitGraph) -> Finding:
    """Proven stuck, yet the sequences do not show where they parted: no culprit is named."""
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=f"{views.ranks_text(tuple(graph.deadlocked))} wait for each other, "
        "and the record does not show where they parted",
        because=(now_text(graph),),
        fix=_SKIPPED_FIX,
        alternatives=(Possibility("collective-mismatch", "possible", "the calls may differ in size or kind"),),
    )
