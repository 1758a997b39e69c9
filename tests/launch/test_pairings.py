"""A difference between the calls of two ranks is worth a close look when two glances have seen it, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.launch.pairings import PairingWatch, suspected
from rankscope.probe.calls import CallRecorder
from rankscope.probe.page import Page


class Tensor:
    dtype = "torch.float32"

    def __init__(self, numel: int = 8) -> None:
        self._numel = numel

    def numel(self) -> int:
        return self._numel


def all_reduce(tensor: Tensor, group: None = None) -> None:
    """Stands for torch's."""


def broadcast(tensor: Tensor, src: int = 0, group: None = None) -> None:
    """Stands for torch's."""


class Rank:
    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"{number}.page"
        page = Page(str(self.path), number)
        page.group("0", "default_pg", [0, 1, 2])
        calls = CallRecorder(page)
        self.all_reduce, self.broadcast = calls.wrap(all_reduce), calls.wrap(broadcast)
        self.step = page.step

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.all_reduce(Tensor())
            self.step()

    def evaluate(self, batches: int) -> None:
        for _ in range(batches):
            self.all_reduce(Tensor())

    def usual(self, times: int = 1) -> None:
        for _ in range(times):
            self.all_reduce(Tensor())
            self.broadcast(Tensor(), src=0)


class Job:
    def __init__(self, folder: Path) -> None:
        self.ranks = [Rank(folder, number) for number in range(3)]
        self.watch = PairingWatch()
        self.now = 100.0

    def glances(self, count: int = 2) -> bool:
        """Whether one of so many glances, half a second apart, asks for a close look."""
        asked = []
        for _ in range(count):
            self.now += 0.5
            asked.append(self.watch.wrong({n: rank.path for n, rank in enumerate(self.ranks)}, self.now))
        return any(asked)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_ranks_that_call_the_same_are_left_alone(job: Job) -> None:
    for round_ in range(20):
        for number, rank in enumerate(job.ranks):
            rank.usual(1 + (round_ + number) % 3)
        assert not job.glances()
    assert not suspected({n: rank.path for n, rank in enumerate(job.ranks)})


def test_another_root_is_looked_at_on_the_second_glance(job: Job) -> None:
    for rank in job.ranks:
        rank.usual(10)
    assert not job.glances()
    for number, rank in enumerate(job.ranks):
        rank.broadcast(Tensor(), src=1 if number == 2 else 0)
        rank.usual(3)
    assert not job.glances(1)
    assert job.glances(1)
    assert suspected({n: rank.path for n, rank in enumerate(job.ranks)})


def test_it_is_looked_at_no_more_than_a_few_times(job: Job) -> None:
    for number, rank in enumerate(job.ranks):
        rank.usual(10)
        rank.broadcast(Tensor(), src=1 if number == 2 else 0)
        rank.usual(3)
    first, later = (sum(job.glances(1) for _ in range(60)) for _ in range(2))
    assert 2 <= first <= 5
    assert later <= 1, "further and further apart"
    assert sum(job.glances(1) for _ in range(1200)) <= 1, "and not for ever"


def test_a_pairing_that_has_not_been_passed_is_left_to_others(job: Job) -> None:
    """The ranks hang in it."""
    for number, rank in enumerate(job.ranks):
        rank.usual(10)
        rank.broadcast(Tensor(), src=1 if number == 2 else 0)
    assert not job.glances(10)
    for rank in job.ranks:
        rank.usual()
    assert job.glances(4), "it was passed after all"


def test_a_rank_that_is_behind_is_compared_as_far_as_it_has_come(job: Job) -> None:
    for number, rank in enumerate(job.ranks):
        rank.usual(40)
        rank.broadcast(Tensor(), src=0 if number else 1)
        rank.usual(300 if number == 2 else 20)
    assert job.glances(2)


def test_calls_written_twice_are_no_difference(job: Job) -> None:
    for _ in range(30):
        for number, rank in enumerate(job.ranks):
            rank.usual()
            if number == 0:
                rank.broadcast(Tensor(), src=0)
            else:
                rank.broadcast(Tensor(), src=0)
        assert not job.glances()


def test_after_a_harmless_difference_a_bad_one_is_still_seen(job: Job) -> None:
    for number, rank in enumerate(job.ranks):
        rank.usual(10)
        if number:
            rank.broadcast(Tensor(), src=0)
        else:
            rank.broadcast(Tensor())  # the default is not read
        rank.usual(10)
    assert not job.glances(4)
    for number, rank in enumerate(job.ranks):
        rank.all_reduce(Tensor(9 if number == 1 else 8))
        rank.usual(10)
    assert job.glances(3)


def test_an_extra_call_that_shifts_all_later_ones_is_looked_at(job: Job) -> None:
    for number, rank in enumerate(job.ranks):
        for turn in range(30):
            rank.all_reduce(Tensor())
            if not (number == 1 and turn == 15):
                rank.all_reduce(Tensor())
    assert job.glances(2)


def test_a_call_from_a_new_line_is_looked_at_when_more_have_followed(job: Job) -> None:
    """A rank has a batch fewer, and trains a step ahead since: eight calls later the steps show it."""
    for number, rank in enumerate(job.ranks):
        rank.train(30)
        rank.evaluate(4 if number == 1 else 5)
        rank.train(3)
    assert not job.glances(2)
    for rank in job.ranks:
        rank.train(10)
    assert job.glances(2)


def test_where_no_more_follow_it_is_looked_at_soon_and_once(job: Job) -> None:
    for number, rank in enumerate(job.ranks):
        rank.train(30)
        rank.evaluate(4 if number == 1 else 5)
        rank.train(3)
    assert [job.glances(2) for _ in range(2)] == [False, True]
    assert not job.glances(200)
    assert suspected({n: rank.path for n, rank in enumerate(job.ranks)})


@pytest.mark.parametrize(("goes_on", "looks"), [((20, 20, 20), 1), ((20, 0, 20), 0)])
def test_a_call_that_only_one_rank_made_is_looked_at_once_where_all_go_on(
    job: Job, goes_on: tuple[int, ...], looks: int
) -> None:
    """It was paired with what torch does in C++; where a rank stands still, it waits for the others."""
    for rank in job.ranks:
        rank.usual(10)
    job.ranks[1].all_reduce(Tensor())
    pages = {n: rank.path for n, rank in enumerate(job.ranks)}
    asked = [
        job.watch.wrong(pages, 0.5 * glance, {n: each * glance for n, each in enumerate(goes_on)})
        for glance in range(20)
    ]
    assert sum(asked) == looks


def test_a_page_that_cannot_be_read_is_no_difference(job: Job) -> None:
    job.ranks[1].path.unlink()
    assert not job.glances()


def test_a_rank_that_is_always_a_call_behind_is_looked_at(job: Job) -> None:
    """All calls come from one line: what was left out shows in their number alone, and in the steps."""
    for rank in job.ranks:
        rank.train(10)
    job.ranks[1].step()
    job.ranks[0].train(1)
    job.ranks[2].train(1)
    assert not job.glances()
    asked = []
    for _ in range(12):
        for rank in job.ranks:
            rank.train(2)
        asked.append(job.glances(1))
    assert True in asked
    assert asked.index(True) < 8
    assert asked.count(True) <= 2, "and not again and again"


def test_a_rank_that_comes_a_little_later_is_not(job: Job) -> None:
    asked = []
    for _ in range(12):
        for rank in job.ranks[:2]:
            rank.train(2)
        asked.append(job.glances(1))
        job.ranks[2].train(2)
    assert True not in asked
