"""Ranks that make the same calls have the same fingerprint; from the first other call on they have not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.evidence.fingerprints import Fingerprint, read_fingerprints, same_place
from rankscope.probe.fingerprints import Fingerprints
from rankscope.probe.page import COARSE_SLOTS, COARSE_STEP, FINGERPRINT_SLOTS, Page

FLOAT32, FLOAT16 = 7, 8
DTYPES = {FLOAT32: "float32", FLOAT16: "float16"}


class Rank:
    """A page, with two sites, and what it writes down."""

    def __init__(self, folder: Path, number: int, members: tuple[int, ...] = (0, 1)) -> None:
        self.path = folder / f"{number}.page"
        self.page = Page(str(self.path), number)
        for extra in range(number):
            self.page.text(f"only rank {number} has this text {extra}")  # numbers of the heap differ between ranks
        self.page.group("0", "default_pg", list(members))
        self.sites = [self.page.site([("/job/train.py", line, "main")]) for line in (3, 9)]
        self.fingerprints = Fingerprints(self.page, DTYPES)
        self.made = 0

    def call(
        self,
        op: str = "all_reduce",
        numel: int = 8,
        dtype: int = FLOAT32,
        root: int = -1,
        site: int = 0,
        times: int = 1,
    ) -> None:
        for _ in range(times):
            self.made += 1
            self.fingerprints.note("0", self.made, op, numel, dtype, root, self.sites[site])

    def read(self) -> Fingerprint:
        (found,) = read_fingerprints(self.path).values()
        return found


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Rank, Rank]:
    return Rank(tmp_path, 0), Rank(tmp_path, 1)


def test_equal_calls_give_equal_fingerprints(ranks: tuple[Rank, Rank]) -> None:
    for rank in ranks:
        rank.call(times=30)
        rank.call("broadcast", 4, root=1, site=1)
    first, second = (rank.read() for rank in ranks)
    assert read_fingerprints(ranks[0].path).keys() == read_fingerprints(ranks[1].path).keys()
    assert [first.after(n) for n in range(1, 32)] == [second.after(n) for n in range(1, 32)]
    assert len({first.after(n) for n in range(1, 32)}) == 31


@pytest.mark.parametrize(
    "other",
    [{"op": "all_gather"}, {"numel": 9}, {"dtype": FLOAT16}, {"op": "broadcast", "root": 0}],
    ids=["operation", "size", "dtype", "operation and root"],
)
def test_another_call_is_another_fingerprint_for_ever(ranks: tuple[Rank, Rank], other: dict[str, int]) -> None:
    first, second = ranks
    for rank in ranks:
        rank.call(times=10)
    first.call()
    second.call(**other)  # type: ignore[arg-type]
    for rank in ranks:
        rank.call(times=20)
    mine, theirs = first.read(), second.read()
    assert mine.after(10) == theirs.after(10)
    for place in range(11, 32):
        (what, path), (other_what, other_path) = mine.after(place) or (0, 0), theirs.after(place) or (0, 0)
        assert what != other_what
        assert path == other_path


def test_another_line_changes_only_the_lines_half(ranks: tuple[Rank, Rank]) -> None:
    first, second = ranks
    first.call(site=0)
    second.call(site=1)
    (what, path), (other_what, other_path) = first.read().after(1) or (0, 0), second.read().after(1) or (0, 0)
    assert what == other_what
    assert path != other_path


def test_sizes_that_may_differ_do_not_count(ranks: tuple[Rank, Rank]) -> None:
    for rank, numel in zip(ranks, (10, 700), strict=True):
        rank.call("all_to_all_single", numel)
        rank.call("all_gather_object", -1, 0)
        rank.call("scatter", numel, root=0)
    assert ranks[0].read().after(3) == ranks[1].read().after(3)


def test_ranks_far_apart_are_compared_at_an_older_place(ranks: tuple[Rank, Rank]) -> None:
    ahead, behind = ranks
    ahead.call(times=1000)
    behind.call(times=505)
    place = same_place([ahead.read(), behind.read()])
    assert 505 - COARSE_STEP < place <= 505
    assert ahead.read().after(place) == behind.read().after(place) is not None
    ahead.call(times=COARSE_STEP * COARSE_SLOTS)
    assert ahead.read().after(place) is None


def test_a_group_of_other_members_has_another_key(tmp_path: Path) -> None:
    one, other = Rank(tmp_path, 0, (0, 1)), Rank(tmp_path, 2, (2, 3))
    one.call()
    other.call()
    assert not read_fingerprints(one.path).keys() & read_fingerprints(other.path).keys()


def test_a_group_whose_members_are_unknown_is_not_compared(ranks: tuple[Rank, Rank]) -> None:
    ranks[0].fingerprints.note("7", 1, "all_reduce", 8, FLOAT32, -1, ranks[0].sites[0])
    assert read_fingerprints(ranks[0].path) == {}


def test_a_name_that_is_given_to_other_ranks_is_compared_no_more(ranks: tuple[Rank, Rank]) -> None:
    rank = ranks[0]
    rank.call(times=3)
    rank.page.group("0", "default_pg", [0, 1])
    rank.fingerprints.group_made("0")
    assert len(read_fingerprints(rank.path)) == 1, "made again for the same ranks"
    rank.page.group("0", "default_pg", [0, 2])
    rank.fingerprints.group_made("0")
    rank.call(times=3)
    assert read_fingerprints(rank.path) == {}


def test_calls_of_two_threads_at_once_are_not_compared(ranks: tuple[Rank, Rank]) -> None:
    rank = ranks[0]
    rank.call(times=3)
    rank.fingerprints.note("0", 5, "all_reduce", 8, FLOAT32, -1, rank.sites[0])  # the fourth is still under way
    rank.fingerprints.note("0", 4, "all_reduce", 8, FLOAT32, -1, rank.sites[0])
    assert read_fingerprints(rank.path) == {}


def test_more_groups_than_there_is_room_for_do_no_harm(ranks: tuple[Rank, Rank]) -> None:
    rank = ranks[0]
    for number in range(FINGERPRINT_SLOTS + 10):
        rank.page.group(f"g{number}", "", [0, 1])
        rank.fingerprints.note(f"g{number}", 1, "barrier", -1, 0, -1, rank.sites[0])
    assert len(read_fingerprints(rank.path)) == FINGERPRINT_SLOTS


def test_sizes_that_never_repeat_take_no_more_memory(ranks: tuple[Rank, Rank]) -> None:
    rank = ranks[0]
    for numel in range(10_000):
        rank.call(numel=numel)
    assert len(rank.fingerprints._known) <= 4096
    assert rank.read().calls == 10_000
