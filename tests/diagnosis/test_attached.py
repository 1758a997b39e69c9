"""A short look at a job without the probe: that every sample finds a rank in a collective does not make it wait."""

from __future__ import annotations

import factories as make
import pytest
from msgspec.structs import replace

from rankscope.diagnosis.attached import as_watched, with_stillness
from rankscope.diagnosis.diagnose import diagnose
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Exit, ProcessSample, RankEvidence, StackSample, Thread
from rankscope.report.conclude import pronounce

C10D = (make.lib("torch/distributed/distributed_c10d.py", "all_reduce"),)
IN_ALL_REDUCE = make.stack("train.py", 24, "train", C10D)
IN_BROADCAST = make.stack("train.py", 27, "train", (make.lib("torch/distributed/distributed_c10d.py", "broadcast"),))
AT_WORK = make.stack("train.py", 23, "train")
WORKING = make.process("futex", cpu=0.04, sleeps=40)
"""Eight per cent of a core, and a short sleep for every step."""


def seen(number: int, *threads: Thread, processes: tuple[ProcessSample, ...] = WORKING) -> RankEvidence:
    stacks = tuple(
        StackSample(make.NOW - 0.5 * (len(threads) - n - 1), (each,), "py-spy") for n, each in enumerate(threads)
    )
    return make.rank(number, stacks=stacks, processes=processes)


def attached(*ranks: RankEvidence) -> Verdict:
    evidence = with_stillness(make.evidence(*ranks), 0.5)
    return pronounce(as_watched(diagnose(evidence), evidence))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((AT_WORK, AT_WORK), id="at work"),
        pytest.param((IN_BROADCAST, AT_WORK), id="on its way"),
        pytest.param((IN_BROADCAST, IN_ALL_REDUCE), id="in other collectives"),
        pytest.param((AT_WORK, IN_BROADCAST), id="in a later collective"),
    ],
)
def test_rank_that_comes_and_goes_does_not_wait(other: tuple[Thread, Thread]) -> None:
    verdict = attached(seen(0, IN_ALL_REDUCE, IN_ALL_REDUCE), seen(1, *other))
    assert (verdict.outcome, verdict.culprits) == ("ok", ())


def test_rank_that_never_woke_waits() -> None:
    verdict = attached(
        seen(0, IN_ALL_REDUCE, IN_ALL_REDUCE, processes=make.process("futex")),
        seen(1, AT_WORK, AT_WORK, processes=make.process(cpu=0.5, state="R")),
    )
    assert (verdict.outcome, [culprit.rank for culprit in verdict.culprits]) == ("slow", [1])


def test_rank_that_spins_in_its_collective_waits() -> None:
    verdict = attached(
        seen(0, IN_ALL_REDUCE, IN_ALL_REDUCE, processes=make.process(cpu=0.5, state="R")),
        seen(1, AT_WORK, AT_WORK, processes=make.process("clock_nanosleep")),
    )
    assert (verdict.outcome, [culprit.rank for culprit in verdict.culprits]) == ("hang", [1])


def test_others_wait_for_a_rank_that_is_not_here() -> None:
    evidence = replace(
        make.evidence(seen(0, IN_ALL_REDUCE, IN_ALL_REDUCE, processes=make.process("futex"))), world_size=2
    )
    verdict = pronounce(diagnose(with_stillness(evidence, 0.5)))
    assert (verdict.outcome, verdict.culprits) == ("hang", ())
    assert "rank 1, of which nothing could be seen from here" in verdict.headline


def test_ranks_that_stand_still_with_nobody_waiting_are_not_well() -> None:
    still = make.process("clock_nanosleep")
    verdict = attached(seen(0, AT_WORK, AT_WORK, processes=still), seen(1, AT_WORK, AT_WORK, processes=still))
    assert verdict.outcome != "ok"


def test_processor_time_on_one_line_is_no_progress() -> None:
    spinning = make.process(cpu=0.5, state="R")
    verdict = attached(seen(0, AT_WORK, AT_WORK, processes=spinning), seen(1, AT_WORK, AT_WORK, processes=spinning))
    assert verdict.outcome != "ok"
    assert not verdict.culprits


def test_one_rank_that_stands_still_keeps_the_job_from_being_well() -> None:
    verdict = attached(
        seen(0, AT_WORK, IN_BROADCAST), seen(1, AT_WORK, AT_WORK, processes=make.process("clock_nanosleep"))
    )
    assert verdict.outcome != "ok"


def test_ranks_of_which_no_stack_can_be_read_are_unknown_with_the_reason() -> None:
    blind = [
        replace(seen(rank, processes=make.process("futex")), missing={"stacks": "not permitted"}) for rank in (0, 1)
    ]
    verdict = attached(*blind)
    assert (verdict.outcome, verdict.cause) == ("unknown", None)
    assert "not permitted" in verdict.headline
    assert "root" in str(verdict.next)


def test_a_rank_that_ended_meanwhile_leaves_open_how() -> None:
    gone = replace(seen(1, AT_WORK), exit=Exit(0, make.NOW, by_launcher=True))
    verdict = attached(seen(0, AT_WORK, IN_BROADCAST), gone)
    assert (verdict.outcome, "rank 1 ended" in verdict.headline) == ("unknown", True)
