"""Ranks that wait for the process group to come about."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.timeline import SET_UP
from rankscope.diagnosis.verdict import Culprit
from rankscope.diagnosis.waits import WaitGraph
from rankscope.evidence.model import Evidence


def explain_missing(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """All ranks that were started wait in the set-up for ranks of the declared world that nobody started."""
    waiting = [rank for rank in graph.waiting() if (wait := graph.states[rank].wait) is not None and wait.op in SET_UP]
    living = [seen.rank for seen in evidence.ranks if seen.exit is None]
    if not graph.absent or not waiting or set(waiting) != set(living):
        return None
    declared = len(graph.states)
    first = graph.states[waiting[0]]
    at = (
        views.place(views.where(first.wait.site[0]))
        if first.wait is not None and first.wait.site
        else "init_process_group"
    )
    absent = views.ranks_text(graph.absent)
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="proven" if _whole_job(evidence) else "likely",
        culprits=(
            Culprit(
                rank=None,
                host=None,
                pid=None,
                process="launcher",
                where=None,
                doing=f"{absent} never started",
            ),
        ),
        summary=f"{absent} of the declared world of {declared} was never started: "
        f"the job has {evidence.world_size} ranks, and all of them wait at {at}",
        because=(
            f"init_process_group was told a world of {declared}; {evidence.world_size} ranks were launched",
            f"{views.ranks_text(waiting)} wait in the set-up; nobody else is coming",
        ),
        fix=(
            "do not pass world_size and rank by hand: init_process_group() reads WORLD_SIZE and RANK",
            f"or launch {declared} ranks: --nproc-per-node times --nnodes must be {declared}",
        ),
        references=("Lightning-AI/pytorch-lightning#20391",),
    )


def _whole_job(evidence: Evidence) -> bool:
    """Every rank of the launch is on the hosts that were looked at: nobody else could still join."""
    return len(evidence.ranks) == evidence.world_size and len({seen.host for seen in evidence.ranks}) == 1
