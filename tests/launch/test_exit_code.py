"""The exit code of a run that was stopped while its culprit was failing, or hung."""

from __future__ import annotations

from rankscope.diagnosis.verdict import Culprit, Outcome, Verdict
from rankscope.evidence.model import Exit
from rankscope.launch.exit_code import own_exit_code
from rankscope.launch.job import Job, RankProcess


def ended_job(*ends: Exit) -> Job:
    job = Job.__new__(Job)
    job.nodes = None
    job.ranks = [RankProcess(rank, rank, 100 + rank, 0.0, lambda: None, end) for rank, end in enumerate(ends)]
    return job


def code(outcome: Outcome, *ends: Exit) -> int:
    """Rank 1 is the culprit, and the run was stopped for a hang."""
    culprit = Culprit(rank=1, host="node", pid=101, process="rank", where=None, doing="")
    verdict = Verdict(1, outcome, "exception", "proven", (culprit,), (0,), "", (), ())
    return own_exit_code(ended_job(*ends), verdict, stopped_for_hang=True, interrupted_by=None)


STOPPED = Exit(-15, 2.0, by_launcher=True)


def test_a_culprit_that_failed_by_itself_while_the_run_was_stopped_keeps_its_code() -> None:
    assert code("crash", STOPPED, Exit(3, 1.0, by_launcher=False)) == 3


def test_a_culprit_that_had_to_be_stopped_leaves_the_code_of_a_hang() -> None:
    assert code("crash", STOPPED, STOPPED) == 75
    assert code("hang", STOPPED, Exit(3, 1.0, by_launcher=False)) == 75
