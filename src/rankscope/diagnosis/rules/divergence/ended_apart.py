"""A rank that ended well, and had skipped a call on its way: the others wait for one more."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import condition
from rankscope.diagnosis.divergence import Divergence, Side, find_divergence, find_divergence_of_programs
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import EndedAfter, Perhaps, Skipped, WentOn
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.call_facts import first_difference
from rankscope.diagnosis.rules.divergence.uneven import ran_out
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence, RankEvidence


def explain_skipped_before_end(left: RankEvidence, evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """None where the calls of the ended rank are simply fewer at the end, or its data were: then it left early."""
    if left.rank in ran_out(graph):
        return None
    waiting = (graph.states[rank].wait for rank in graph.waiters_of(left.rank))
    for group in dict.fromkeys(wait.group for wait in waiting if wait is not None and wait.group):
        for divergence in (graph.once(find_divergence, group), graph.once(find_divergence_of_programs, group)):
            side = _side_of(left.rank, divergence)
            if divergence is None or side is None or side.event is None or not _skipped(side, divergence):
                continue
            usual = next(other for other in divergence.sides if other is not side)
            if usual.event is not None:
                return _explain(left, side, usual, divergence, evidence, graph)
    return None


def _side_of(rank: int, divergence: Divergence | None) -> Side | None:
    return next((side for side in divergence.sides if rank in side.ranks), None) if divergence is not None else None


def _skipped(side: Side, divergence: Divergence) -> bool:
    """By how the sequences go on: it made fewer calls, or, seen from there, the others made more."""
    if side.kind is not None:
        return side.kind == "skipped"
    return len(divergence.sides) == 2 and divergence.sides[1].kind == "extra"


def _explain(
    left: RankEvidence, side: Side, usual: Side, divergence: Divergence, evidence: Evidence, graph: WaitGraph
) -> Finding:
    assert usual.event is not None
    count = side.count or usual.count
    at = views.where(usual.site[0]) if usual.site else None
    events = graph.states[usual.ranks[0]].of(divergence.group)
    times = sum(seq <= divergence.seq and event.site == usual.site for seq, event in events.items())
    skipped = Skipped((left.rank,), usual.event.op, at, count, times)
    found = CodeReader(evidence).way_past(usual.site)
    reasons: tuple[Fact, ...] = ()
    line = at
    if found is not None:
        frame, branch = found
        skipping = condition(frame, branch, "leads-past", (left.rank,))
        line, reasons = skipping.where, (skipping,)
    failed = any(seen.exit is not None and seen.exit.code for seen in evidence.ranks)
    return Finding(
        outcome="crash" if failed else "hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=(views.rank_culprit(left, skipped, line),),
        summary=skipped,
        because=(
            first_difference(divergence, graph),
            WentOn((left.rank,), "skipped", count),
            *reasons,
            EndedAfter(left.rank, left.exit.code if left.exit is not None else 0),
        ),
        fix=(Advice("same-collectives"), Advice("decide-together")),
        alternatives=(Possibility("rank-left", "possible", Perhaps("left-too-early")),),
        began=usual.event.at,
    )
