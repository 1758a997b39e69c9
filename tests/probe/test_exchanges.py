"""The shares of every all_to_all are on the page, and a launcher that reads all pages sees where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.evidence.exchanges import count_exchanges, read_exchanges
from rankscope.launch.shares import ShareWatch
from rankscope.probe.exchanges import Exchanges
from rankscope.probe.page import EXCHANGE_MEMBERS, EXCHANGE_SLOTS, Page


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


class Rank:
    def __init__(self, folder: Path, number: int, world: int) -> None:
        self.path = folder / f"{number}.page"
        self.page = Page(str(self.path), number)
        self.page.group("0", "default_pg", list(range(world)))
        self.exchanges = Exchanges(self.page)
        self.made = 0

    def call(self, /, *args: Any, op: str = "all_to_all_single", **kwargs: Any) -> None:
        self.made += 1
        self.exchanges.note("0", self.made, op, args, kwargs)

    def shares(self, sends: list[int], receives: list[int]) -> None:
        self.call(Tensor(sum(receives)), Tensor(sum(sends)), receives, sends)


def _job(folder: Path, world: int = 3) -> list[Rank]:
    return [Rank(folder, number, world) for number in range(world)]


def _misfit(ranks: list[Rank]) -> bool:
    """Two glances, as the launcher makes them."""
    watch, pages = ShareWatch(), {number: rank.path for number, rank in enumerate(ranks)}
    return any([watch.misfit(pages, 0.0), watch.misfit(pages, 1.0)])


@pytest.mark.parametrize(
    ("args", "kwargs", "op"),
    [
        ((Tensor(6, 4), Tensor(6, 4), [1, 2, 3], [3, 2, 1]), {}, "all_to_all_single"),
        ((Tensor(6, 4), Tensor(6, 4)), {"output_split_sizes": [1, 2, 3], "input_split_sizes": (3, 2, 1)}, None),
        ((), {"output": Tensor(6, 4), "input": Tensor(6, 4), "output_split_sizes": [1, 2, 3],
              "input_split_sizes": [3, 2, 1]}, None),
        ((Tensor(6, 4), [1, 2, 3], [3, 2, 1], "group"), {}, None),
        ((), {"self": Tensor(6, 4), "output_split_sizes": [1, 2, 3], "input_split_sizes": [3, 2, 1]}, None),
        (([Tensor(n, 4) for n in (1, 2, 3)], [Tensor(n, 4) for n in (3, 2, 1)]), {}, "all_to_all"),
    ],
)  # fmt: skip
def test_shares_are_read_from_every_way_to_call_it(
    args: tuple[Any, ...], kwargs: dict[str, Any], op: str | None, tmp_path: Path
) -> None:
    rank = Rank(tmp_path, 0, 3)
    rank.call(*args, op=op or "all_to_all_single", **kwargs)
    (found,) = read_exchanges(rank.path)
    assert (found.seq, found.sends, found.receives) == (1, (12, 8, 4), (4, 8, 12))


def test_without_sizes_all_shares_are_alike(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, 3)
    rank.call(Tensor(6, 2), Tensor(6, 2))
    (found,) = read_exchanges(rank.path)
    assert found.sends == found.receives == (4, 4, 4)


@pytest.mark.parametrize(
    "args",
    [
        (Tensor(6), [1, 0, 2], "group"),  # permute_tensor
        (Tensor(6), Tensor(6), [object()] * 3, [2, 2, 2]),  # sizes that are not known yet
        (Tensor(6), Tensor(6), [2, 2], [2, 2]),  # torch will raise
        (Tensor(7), Tensor(7)),
    ],
)
def test_what_cannot_be_told_is_left_out(args: tuple[Any, ...], tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, 3)
    rank.call(*args)
    assert count_exchanges(rank.path) == 0


def test_large_groups_are_left_out(tmp_path: Path) -> None:
    world = EXCHANGE_MEMBERS + 1
    rank = Rank(tmp_path, 0, world)
    rank.shares([1] * world, [1] * world)
    assert count_exchanges(rank.path) == 0


def test_shares_that_fit_are_never_told(tmp_path: Path) -> None:
    ranks = _job(tmp_path)
    for step in range(3 * EXCHANGE_SLOTS):
        plan = [[(5 * sender + 3 * receiver + step) % 7 for receiver in range(3)] for sender in range(3)]
        for number, rank in enumerate(ranks):
            rank.shares(plan[number], [row[number] for row in plan])
    assert not _misfit(ranks)


@pytest.mark.parametrize("sends", [[1, 1, 1], [2, 2, 1], [2, 2, 3]])
def test_shares_that_do_not_fit_are_told(sends: list[int], tmp_path: Path) -> None:
    ranks = _job(tmp_path)
    for _ in range(4):
        for rank in ranks:
            rank.shares([2, 2, 2], [2, 2, 2])
    for rank in ranks:
        rank.shares(sends if rank is ranks[1] else [2, 2, 2], [2, 2, 2])
    assert _misfit(ranks)


def test_a_rank_that_has_not_come_yet_is_waited_for(tmp_path: Path) -> None:
    ranks = _job(tmp_path)
    for rank in ranks[:2]:
        rank.shares([2, 2, 9], [2, 2, 9])
    assert not _misfit(ranks)
    ranks[2].shares([9, 9, 2], [9, 9, 2])
    assert not _misfit(ranks)


def test_a_job_is_looked_at_three_times_for_it_at_most(tmp_path: Path) -> None:
    ranks = _job(tmp_path, 2)
    for rank, sends in zip(ranks, ([1, 2], [3, 1]), strict=True):
        rank.shares(sends, [1, 2])
    watch, pages = ShareWatch(), {number: rank.path for number, rank in enumerate(ranks)}
    assert sum(watch.misfit(pages, 3.0 * glance) for glance in range(10)) == 3
