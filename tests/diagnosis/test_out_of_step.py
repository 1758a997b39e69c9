"""Calls from one line that belong to other optimizer steps than the calls they are paired with."""

from __future__ import annotations

import pytest
from paired_programs import evidence_of, line_of

from rankscope.diagnosis.verdict import Verdict
from rankscope.report.conclude import conclude

PROGRAM = """
def push(known):
    if not known:
        return
    all_reduce(Tensor(2))

def main():
    for number in range(60):
        push(DATA)
        MORE
        all_gather(Tensor(64), group="1")
        STEP
        work(0.05)
main()
"""


def program(data: str = "True", more: str = "pass", step: str = "step()") -> str:
    return PROGRAM.replace("DATA", data).replace("MORE", more).replace("STEP", step)


def diagnosed(source: str, ranks: int = 3, *, recorded: bool = False) -> Verdict:
    groups = (("1", (tuple(range(ranks)),)),)
    return conclude(evidence_of(source, ranks, recorded=recorded, groups=groups, behind={0: 3, 1: 1}))


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
def test_a_call_left_out_is_told_with_the_condition_that_led_past_it(recorded: bool) -> None:
    source = program("not (rank == 1 and number == 30)")
    verdict = diagnosed(source, recorded=recorded)
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", "collective-skipped", "likely")
    (culprit,) = verdict.culprits
    assert culprit.rank == 1
    assert culprit.where is not None
    assert culprit.where.line == line_of(source, "if not known:")
    assert "rank 1 skipped the all_reduce at push" in verdict.headline


def test_of_two_ranks_both_sides_are_told() -> None:
    verdict = diagnosed(program("not (rank == 1 and number == 30)"), 2)
    assert (verdict.outcome, verdict.cause, verdict.culprits) == ("corrupt", "collective-skipped", ())
    assert [side.ranks for side in verdict.sides] == [(0,), (1,)]


def test_one_call_more_is_told() -> None:
    verdict = diagnosed(program(more="push(rank == 2 and number == 30)"))
    assert (verdict.outcome, verdict.cause) == ("corrupt", "collective-skipped")
    assert [culprit.rank for culprit in verdict.culprits] == [2]
    assert "a call that no other rank of the group makes there" in verdict.headline
    assert not any("skips push" in reason for reason in verdict.because)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(program(), id="nothing left out"),
        pytest.param(program("not (rank == 1 and number == 56)"), id="too few since"),
        pytest.param(program("not (rank == 1 and number == 3)"), id="too few before"),
        pytest.param(program("number % 7 == rank or number % 11 == 0"), id="each when it has something"),
        pytest.param(program("number % 10 == (rank == 1 and number > 30)"), id="a step later from then on"),
        pytest.param(
            program(step="step() if not (rank == 1 and number == 30) else None"), id="an optimizer step left out"
        ),
        pytest.param(program(step="step(); rank == 1 and number == 30 and step()"), id="an optimizer step more"),
        pytest.param(program("not (rank == 1 and number == 30)", step="pass"), id="no steps"),
    ],
)
def test_what_may_be_so_is_not_told(source: str) -> None:
    assert diagnosed(source).outcome == "ok"


def test_without_calls_of_another_group_it_may_be_the_steps_that_differ() -> None:
    alone = program("not (rank == 1 and number == 30)").replace('all_gather(Tensor(64), group="1")', "pass")
    assert diagnosed(alone).outcome == "ok"
