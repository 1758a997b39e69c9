"""A short look at a job without the probe: that every sample finds a rank in a collective does not make it wait."""

from __future__ import annotations

from dataclasses import replace

import factories as make
import pytest

from rankscope.diagnosis.attached import as_watched, with_stillness
from rankscope.diagnosis.diagnose import diagnose
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import ProcessSample, RankEvidence, StackSample, Thread
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
