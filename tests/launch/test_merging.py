"""Equal lines of several ranks, shown once."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from rankscope.launch.merging import HOLD_S, Merger


def leave(merger: Merger, now: float, everybody: int = 4) -> list[tuple[list[int], bytes]]:
    return [(line.owners, line.text) for line in merger.ready(now, everybody)]


def test_a_line_that_all_say_leaves_as_soon_as_the_last_has_said_it() -> None:
    merger = Merger()
    for rank in (2, 0, 1):
        merger.add(rank, "stdout", b"loading", 0.0)
        assert leave(merger, 0.0) == []
    merger.add(3, "stdout", b"loading", 0.1)
    assert leave(merger, 0.1) == [([2, 0, 1, 3], b"loading")]


def test_a_line_of_one_rank_waits_a_moment_and_no_longer() -> None:
    merger = Merger()
    merger.add(0, "stdout", b"loss 1", 0.0)
    assert leave(merger, HOLD_S - 0.01) == []
    assert merger.next_due == HOLD_S
    assert HOLD_S <= 0.2
    assert leave(merger, HOLD_S) == [([0], b"loss 1")]
    merger.add(1, "stdout", b"loss 1", HOLD_S)
    assert leave(merger, 9.0) == [([1], b"loss 1")], "too late to join"


def test_the_order_of_a_rank_is_kept_though_its_line_could_join_an_earlier_one() -> None:
    merger = Merger()
    for rank, text in ((0, b"a"), (1, b"b"), (0, b"b"), (1, b"a")):
        merger.add(rank, "stdout", text, 0.0)
    assert leave(merger, 1.0) == [([0], b"a"), ([1, 0], b"b"), ([1], b"a")]


def test_the_same_line_said_twice_by_a_rank_is_shown_twice() -> None:
    merger = Merger()
    for rank in (0, 1):
        for _ in range(2):
            merger.add(rank, "stdout", b"---", 0.0)
    shown = leave(merger, 1.0)
    assert sorted(owner for owners, _ in shown for owner in owners) == [0, 0, 1, 1]


def test_what_goes_to_other_places_is_not_the_same() -> None:
    merger = Merger()
    merger.add(0, "stdout", b"x", 0.0)
    merger.add(1, "stderr", b"x", 0.0)
    assert len(leave(merger, 1.0)) == 2


def test_a_flood_is_not_held() -> None:
    merger = Merger()
    for number in range(20_000):
        merger.add(0, "stdout", b"%d" % number, 0.0)
        merger.ready(0.0, 4)
    assert len(merger.rest()) <= 5000


SAID = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"]), st.floats(0, 0.1)), max_size=60)


@given(SAID)
def test_every_line_of_every_rank_is_shown_once_in_its_order_and_in_time(said: list[tuple[int, bytes, float]]) -> None:
    merger, now = Merger(), 0.0
    expected: dict[int, list[bytes]] = defaultdict(list)
    got: dict[int, list[bytes]] = defaultdict(list)

    def take(lines: list[tuple[list[int], bytes]]) -> None:
        for owners, text in lines:
            assert len(set(owners)) == len(owners)
            for owner in owners:
                got[owner].append(text)

    for rank, text, later in said:
        now += later
        take(leave(merger, now))
        assert merger.next_due is None or now < merger.next_due <= now + HOLD_S
        merger.add(rank, "stdout", text, now)
        expected[rank].append(text)
    take([(line.owners, line.text) for line in merger.rest()])
    assert got == expected
