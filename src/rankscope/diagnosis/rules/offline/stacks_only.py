"""Ranks that all wait in collectives, of which only the stacks are known: at different places, they wait in vain."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.divergence.waiting_words import waiting_culprit
from rankscope.diagnosis.timeline import POINT_TO_POINT, SET_UP
from rankscope.diagnosis.waits import WaitGraph
from rankscope.evidence.model import Evidence, Frame

_Key = tuple[str, str, int]


def explain_parted(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """Every rank was seen, is still, and stands in a call of torch.distributed, but not all in the same. Only a
    condition on the rank in the source tells who took the wrong way; otherwise nobody is named."""
    places: dict[_Key, list[int]] = {}
    sites: dict[_Key, tuple[Frame, ...]] = {}
    ops: dict[_Key, str] = {}
    limit = evidence.stall_after_s
    for rank, state in graph.states.items():
        seen, wait = state.seen, state.wait
        if seen is None or seen.exit is not None or wait is None or wait.seq or not wait.site:
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
    parts = [
        f"{views.ranks_text(places[key])} {views.verb(places[key], 'wait')} in {_words(ops[key])} at "
        f"{views.place(views.where(sites[key][0]))}"
        for key in keys
    ]
    # Where most ranks stand under the condition, it may as well be one that keeps the others away.
    guilty = decided.ranks if decided.reserved and 2 * len(decided.ranks) <= len(graph.states) else ()
    culprits = tuple(
        waiting_culprit(graph.states[rank], f"waits in {_words(ops[key])}", views.where(sites[key][0]))
        for key in keys
        for rank in places[key]
        if rank in guilty
    )
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=culprits,
        summary="the ranks wait in different collectives: " + "; ".join(parts),
        because=(*parts, *(decided.reasons if guilty else ()), "none of them moved while it was watched"),
        fix=(
            "make every rank reach the same collectives in the same order: move the call out of the branch, "
            "or take the branch on all ranks",
        ),
        alternatives=(
            Possibility(
                "collective-mismatch",
                "possible",
                "the calls may stand for one another",
                "start the job with `rankscope run`: the sequence of collectives shows where the ranks parted",
            ),
        ),
        references=("pytorch/pytorch#54059",),
        next=("start the job with `rankscope run`: the sequence of collectives shows where the ranks parted",),
    )


def _words(op: str) -> str:
    return "an operation of torch" if op == "torch" else op
