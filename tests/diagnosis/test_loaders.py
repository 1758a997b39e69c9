"""Who came to the end of a data loader before the others, by what was consumed."""

from __future__ import annotations

import factories as make
import pytest
from msgspec.structs import replace

from rankscope.diagnosis.loaders import Shortage, shortages
from rankscope.evidence.model import Frame, Loader, LoaderRun, Progress

HERE, THERE = (Frame("train", "/home/me/train.py", line, user=True) for line in (10, 40))


def written(loader: Loader, *earlier: LoaderRun) -> Progress:
    return replace(make.progress(world=2), loader=loader, earlier_loaders=earlier)


def now(number: int, batches: int, *, exhausted: bool = False, length: int = -1, at: Frame = HERE) -> Loader:
    return Loader(number, batches, exhausted, 0, False, make.NOW, (at,), length)


def run(number: int, batches: int, at: Frame = HERE, length: int = -1) -> LoaderRun:
    return LoaderRun(number, batches, length, (at,))


@pytest.mark.parametrize(
    ("short", "other"),
    [
        (written(now(0, 8, exhausted=True)), written(now(0, 10))),
        (written(now(0, 8, length=8)), written(now(0, 10, length=10))),
        (written(now(1, 2), run(0, 8)), written(now(0, 10))),
        (written(now(3, 2), run(1, 8), run(2, 8)), written(now(3, 1), run(1, 10), run(2, 10))),
    ],
    ids=["exhausted", "stopped at its length", "began the next one", "in an epoch before"],
)
def test_a_rank_that_took_fewer_batches_is_short(short: Progress, other: Progress) -> None:
    assert shortages({0: other, 1: short}) == {1: Shortage(8, 0, 10)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (written(now(0, 8, exhausted=True)), written(now(0, 8))),
        (written(now(0, 8)), written(now(0, 10))),
        (written(now(1, 8, at=THERE), run(0, 5, at=THERE)), written(now(1, 10), run(0, 10))),
        (written(now(1, 2), run(0, 8)), written(now(1, 5), run(0, 8))),
        (written(now(0, 10, length=250)), written(now(1, 2, length=4), run(0, 8, length=250))),
    ],
    ids=["as many", "both go on", "other loaders", "same epochs", "an evaluation in the middle"],
)
def test_ranks_that_took_the_same_or_still_go_on_are_not_short(one: Progress, other: Progress) -> None:
    assert shortages({0: one, 1: other}) == {}
