"""Ranks that torch's debug mode stopped before calls that differ: the odd one is named, by its own call."""

from __future__ import annotations

import factories as make
from ended_ranks import failed

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import RankEvidence
from rankscope.report.conclude import conclude


def text(number: int, own: str, other_number: int, other: str, seq: int = 6) -> str:
    def told(call: str) -> str:
        return f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={call}, TensorDtypes=Float)"

    return (
        f"Detected mismatch between collectives on ranks. Rank {number} is running collective: {told(own)}, "
        f"but Rank {other_number} is running collective: {told(other)}."
    )


def stopped(rank: int, line: int, message: str) -> RankEvidence:
    return failed(rank, "RuntimeError", message, make.frame("train.py", line, "step"))


def culprits(verdict: Verdict) -> list[tuple[int | None, int | None]]:
    return [(each.rank, each.where.line if each.where is not None else None) for each in verdict.culprits]


def test_the_rank_whose_call_differs_is_named_and_not_those_that_raised_with_it() -> None:
    shapes = ("ALLREDUCE, TensorShape=[4]", "ALLREDUCE, TensorShape=[6]")
    verdict = conclude(
        make.evidence(
            stopped(0, 7, text(0, shapes[0], 2, shapes[1])),
            stopped(1, 7, text(1, shapes[0], 2, shapes[1])),
            stopped(2, 7, text(2, shapes[1], 0, shapes[0])),
        )
    )
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("crash", "collective-mismatch", "proven")
    assert (culprits(verdict), verdict.victims) == ([(2, 7)], (0, 1))


def test_one_against_one_shows_both_sides_and_blames_nobody() -> None:
    verdict = conclude(
        make.evidence(
            stopped(0, 7, text(0, "ALLREDUCE", 1, "BARRIER")), stopped(1, 8, text(1, "BARRIER", 0, "ALLREDUCE"))
        )
    )
    assert (verdict.certainty, verdict.culprits) == ("likely", ())
    assert [(side.ranks, side.where and side.where.line, side.call) for side in verdict.sides] == [
        ((0,), 7, "ALLREDUCE"),
        ((1,), 8, "BARRIER"),
    ]
    assert "BARRIER in step (train.py:8)" in verdict.headline


def test_numbers_of_a_subgroup_are_not_taken_for_ranks_of_the_job() -> None:
    # Ranks 1 to 3 are a group, in which they are 0 to 2; the last of them calls a barrier.
    verdict = conclude(
        make.evidence(
            make.rank(0),
            stopped(1, 7, text(0, "ALLREDUCE", 2, "BARRIER")),
            stopped(2, 7, text(1, "ALLREDUCE", 2, "BARRIER")),
            stopped(3, 9, text(2, "BARRIER", 0, "ALLREDUCE")),
        )
    )
    assert culprits(verdict) == [(3, 9)]


def test_two_groups_that_failed_at_once_are_not_counted_together() -> None:
    verdict = conclude(
        make.evidence(
            stopped(0, 7, text(0, "ALLREDUCE", 1, "BARRIER")),
            stopped(1, 9, text(1, "BARRIER", 0, "ALLREDUCE")),
            stopped(2, 7, text(0, "ALLREDUCE", 1, "ALLGATHER")),
            stopped(3, 5, text(1, "ALLGATHER", 0, "ALLREDUCE")),
        )
    )
    assert verdict.certainty != "proven"
