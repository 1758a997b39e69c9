"""Ranks that wait for the process group to come about."""

from __future__ import annotations

from collections import Counter

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.setup import (
    AskedForGroup,
    DeclaredWorld,
    GroupsDiffer,
    GroupsTakeAll,
    RanksNeverStarted,
    WaitInNewGroup,
    WaitInSetUp,
)
from rankscope.diagnosis.finding import Finding, Suspect
from rankscope.diagnosis.timeline import SET_UP
from rankscope.diagnosis.wait_graph import WaitGraph, groups_made
from rankscope.evidence.model import Evidence


def explain_missing(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """All ranks that were started wait in the set-up for ranks of the declared world that nobody started."""
    waiting = [rank for rank in graph.waiting() if (wait := graph.states[rank].wait) is not None and wait.op in SET_UP]
    living = [seen.rank for seen in evidence.ranks if seen.exit is None]
    if not graph.absent or not waiting or set(waiting) != set(living):
        return None
    wait = graph.states[waiting[0]].wait
    at = views.where(wait.site[0]) if wait is not None and wait.site else None
    declared, launched = len(graph.states), evidence.world_size
    missing = RanksNeverStarted(tuple(sorted(graph.absent)), declared, launched, at)
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="proven" if _whole_job(evidence) else "likely",
        culprits=(Suspect(rank=None, host=None, pid=None, process="launcher", where=None, doing=missing),),
        summary=missing,
        because=(DeclaredWorld(declared, launched), WaitInSetUp(tuple(waiting))),
        fix=(Advice("world-by-environment"), Advice("launch-declared", declared=declared)),
        references=("Lightning-AI/pytorch-lightning#20391",),
    )


def explain_group_creation(graph: WaitGraph) -> Finding | None:
    """Ranks that wait in new_group because the ranks did not ask for the same groups in the same order."""
    waiting = [
        rank for rank in graph.waiting() if (w := graph.states[rank].wait) and w.op in ("new_group", "split_group")
    ]
    if not waiting:
        return None
    made = {rank: groups_made(state) for rank, state in graph.states.items() if state.seen is not None}
    for number in range(max(map(len, made.values()), default=0)):
        asked = {rank: groups[number] for rank, groups in made.items() if number < len(groups)}
        counts = Counter(asked.values()).most_common(2)
        if len(counts) < 2:
            continue
        usual, times = counts[0]
        odd = tuple(rank for rank, members in asked.items() if members != usual) if times > counts[1][1] else ()
        return _groups_differ(number, asked, odd, waiting, graph)
    return None


def _groups_differ(
    number: int, asked: dict[int, str], odd: tuple[int, ...], waiting: list[int], graph: WaitGraph
) -> Finding:
    by_members: dict[str, list[int]] = {}
    for rank, members in asked.items():
        by_members.setdefault(members, []).append(rank)
    parts = tuple(AskedForGroup(tuple(ranks), members, number + 1) for members, ranks in by_members.items())
    culprits = []
    for rank in odd:
        state = graph.states[rank]
        if state.seen is not None:
            at = views.where(state.wait.site[0]) if state.wait is not None and state.wait.site else None
            doing = AskedForGroup((rank,), asked[rank], number + 1)
            culprits.append(views.rank_culprit(state.seen, doing, at or views.current_where(state.seen)))
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="proven" if graph.deadlocked & set(waiting) else "likely",
        culprits=tuple(culprits),
        summary=GroupsDiffer(number + 1, parts),
        because=(GroupsTakeAll(), *parts, WaitInNewGroup(tuple(waiting))),
        fix=(Advice("new-group-everywhere"), Advice("new-group-local")),
        references=("pytorch/pytorch#25390", "pytorch/pytorch#130102"),
    )


def _whole_job(evidence: Evidence) -> bool:
    """Every rank of the launch is on the hosts that were looked at: nobody else could still join."""
    if len(evidence.ranks) != evidence.world_size:
        return False
    if evidence.nodes:
        return all(node.state == "answered" for node in evidence.nodes)
    return len({seen.host for seen in evidence.ranks}) == 1
