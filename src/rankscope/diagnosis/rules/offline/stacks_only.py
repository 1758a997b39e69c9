"""Ranks that all wait in collectives, of which only the stacks are known: at different places, they wait in vain."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.facts.logs import May
from rankscope.diagnosis.facts.recorded import NobodyMoved, ParkedApart, ParkedIn
from rankscope.diagnosis.finding import Finding, Possibility, Way
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.timeline import POINT_TO_POINT, SET_UP
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence, Frame
from rankscope.evidence.unrecorded import empty_record

_Key = tuple[str, str, int]


def explain_parted(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """Every rank was seen, is still, and stands in a call of torch.distributed, but not all in the same. Only a
    condition on the rank in the source tells who took the wrong way; otherwise nobody is named."""
    places: dict[_Key, list[int]] = {}
    sites: dict[_Key, tuple[Frame, ...]] = {}
    ops: dict[_Key, str] = {}
    limit = evidence.stall_after_s
    uncounted = _uncounted(graph)
    for rank, state in graph.states.items():
        seen, wait = state.seen, state.wait
        if seen is None or seen.exit is not None or wait is None or not wait.site:
            return None
        if wait.seq and not uncounted:
            return None
        if wait.op in SET_UP or wait.op in POINT_TO_POINT:
            return None
        if limit is None or seen.still_for_s is None or seen.still_for_s < limit:
            return None
        key = (wait.op, wait.site[0].file, wait.site[0].line)
        places.setdefault(key, []).append(rank)
        sites[key], ops[key] = wait.site, wait.op
    if len(places) < 2:
        return None
    code = CodeReader(evidence)
    keys = sorted(places, key=lambda key: (-len(places[key]), places[key]))
    if len(set(ops.values())) == 1 and code.opposite_branches(sites[keys[0]], sites[keys[1]]) is not None:
        return None  # one call, written in both branches of a condition
    sides = tuple(Side(tuple(places[key]), None, sites[key]) for key in keys)
    decided = blame(Divergence("0", 0, sides, 0), graph.states, code)
    parts = tuple(ParkedIn(tuple(places[key]), _name(ops[key]), views.where(sites[key][0])) for key in keys)
    # Where most ranks stand under the condition, it may as well be one that keeps the others away.
    guilty = decided.ranks if decided.reserved and 2 * len(decided.ranks) <= len(graph.states) else ()
    culprits = tuple(
        views.rank_culprit(seen, part, part.where)
        for part in parts
        for rank in part.ranks
        if rank in guilty and (seen := graph.states[rank].seen) is not None
    )
    sequence = None if uncounted else Advice("run-for-sequence")
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=culprits,
        summary=ParkedApart(parts),
        because=(*parts, *(decided.reasons if guilty else ()), NobodyMoved()),
        fix=(Advice("same-collectives-everywhere"), Advice("out-of-the-branch")),
        alternatives=(Possibility("collective-mismatch", "possible", May((), "stand-for-one-another"), sequence),),
        references=("pytorch/pytorch#54059",),
        next=(sequence,) if sequence is not None else (),
        ways=tuple(Way(part.ranks, part.where, ParkedIn((), part.op, None)) for part in parts),
    )


def _uncounted(graph: WaitGraph) -> bool:
    """A rank stands in a backward pass of which nothing is recorded: DDP's reductions are missing in all sequences, and
    those that the probe has counted say nothing about places."""
    return any(
        state.seen is not None and state.wait is not None and not state.wait.seq and empty_record(state.seen)
        for state in graph.states.values()
    )


def _name(op: str) -> str:
    """Of a call of which only is known that it is torch's, nothing."""
    return "" if op == "torch" else op
