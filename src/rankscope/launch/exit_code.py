"""The exit code of a run."""

from __future__ import annotations

import sys

from rankscope.diagnosis.verdict import Verdict
from rankscope.launch.job import Job


def own_exit_code(
    job: Job,
    verdict: Verdict,
    *,
    stopped_for_hang: bool,
    interrupted_by: int | None,
    stopped_for_nan: bool = False,
) -> int:
    """The exit code of the run: the culprit's own wherever it has one."""
    if job.finished_well() and (job.nodes is None or verdict.outcome == "ok"):
        return 0
    guilty = {culprit.rank for culprit in verdict.culprits}
    if stopped_for_hang and not (verdict.outcome == "crash" and guilty & {process.rank for process in job.failed()}):
        return 75  # a culprit that failed while it was looked at has a code of its own
    if stopped_for_nan:
        return 76
    if interrupted_by is not None and verdict.outcome == "interrupted":
        return 128 + interrupted_by
    here = {process.rank for process in job.ranks}
    elsewhere = sorted(rank for rank in verdict.exit_codes if rank in guilty and rank not in here)
    for rank in elsewhere:
        # This node's ranks only failed with it, or were stopped because of it.
        code = verdict.exit_codes[rank] or 0
        if code:
            return code if code > 0 else 128 - code
    failed = sorted(
        job.failed(), key=lambda process: (process.rank not in guilty, process.exit.at if process.exit else 0)
    )
    for process in failed:
        code = process.exit.code if process.exit is not None else 0
        if code:
            return code if code > 0 else 128 - code
    for rank in sorted(set(verdict.exit_codes) - here):
        # Victims on other nodes, where the culprit left with 0 or is lost.
        code = verdict.exit_codes[rank] or 0
        if code:
            return code if code > 0 else 128 - code
    if job.nodes is not None:
        return 137 if verdict.cause == "killed" else 75
    if interrupted_by is not None:
        return 128 + interrupted_by  # it was stuck, and somebody had enough of it
    print("rankscope: no rank ended with a code of its own", file=sys.stderr)
    return 1
