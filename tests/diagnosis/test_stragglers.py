"""The slow rank is the one that the others waited for, and the phase is where its additional time went."""

from __future__ import annotations

import factories as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnosis.rules.numbers.stragglers import between, find_stragglers, kept_waiting, usual_place
from rankscope.evidence.model import Phases
from rankscope.report.conclude import conclude
from rankscope.report.words import sentence


def spent(
    data: float = 0.0,
    forward: float = 0.0,
    backward: float = 0.0,
    waiting: float = 0.0,
    saving: float = 0.0,
    elapsed: float = 100.0,
) -> Phases:
    return Phases(1000.0, 1000.0 + elapsed, 2, data, forward, backward, waiting, saving)


USUAL = {"data": 10.0, "forward": 20.0, "backward": 20.0, "waiting": 40.0, "saving": 0.0}


@pytest.mark.parametrize(
    ("slow", "phase"),
    [
        ({"data": 48.0, "waiting": 2.0}, "data"),
        ({"forward": 40.0, "backward": 38.0, "waiting": 2.0}, "forward/backward"),
        ({"saving": 38.0, "waiting": 2.0}, "save"),
        ({"waiting": 2.0}, "other"),
    ],
)
def test_phase_is_where_the_additional_time_went(slow: dict[str, float], phase: str) -> None:
    times = {0: spent(**USUAL), 1: spent(**{**USUAL, **slow}), 2: spent(**USUAL)}
    (found,) = find_stragglers(times)
    assert (found.rank, found.phase, found.lost_s, found.share) == (1, phase, 38.0, 0.38)
    assert found.factor == pytest.approx(98 / 60, abs=0.01)


def test_even_ranks_have_no_straggler() -> None:
    assert find_stragglers({rank: spent(**{**USUAL, "waiting": 40.0 + rank}) for rank in range(4)}) == ()
    assert find_stragglers({0: spent(**USUAL)}) == ()
    assert find_stragglers({}) == ()


def test_half_of_the_ranks_are_never_all_stragglers() -> None:
    times = {rank: spent(**{**USUAL, "waiting": 2.0 if rank < 2 else 40.0}) for rank in range(4)}
    assert find_stragglers(times) == ()


def test_two_slow_ranks_of_eight_are_both_named() -> None:
    times = {rank: spent(**{**USUAL, "waiting": 5.0 if rank in (3, 6) else 40.0}) for rank in range(8)}
    assert [each.rank for each in find_stragglers(times)] == [3, 6]


def test_ranks_that_were_not_counted_over_the_same_time_are_not_compared() -> None:
    assert find_stragglers({0: spent(waiting=0.0, elapsed=5.0), 1: spent(waiting=40.0), 2: spent(waiting=40.0)}) == ()


def test_a_second_lost_in_a_long_run_is_nothing() -> None:
    assert find_stragglers({0: spent(waiting=1.0), 1: spent(waiting=2.5)}) == ()


def test_sentence_names_rank_victims_seconds_and_phase() -> None:
    times = {0: spent(**USUAL), 1: spent(**{**USUAL, "data": 48.0, "waiting": 2.0}), 2: spent(**USUAL)}
    text = sentence(kept_waiting(find_stragglers(times), [0, 1, 2]))
    assert text.startswith("rank 1 kept ranks 0, 2 waiting for 38.0 s (38% of the time)")
    assert text.endswith("in loading data")


def test_window_is_the_difference_of_two_looks() -> None:
    added = between(spent(data=1.0, waiting=2.0), spent(data=4.0, waiting=7.0, elapsed=120.0))
    assert (added.until - added.since, added.data_s, added.waiting_s) == (20.0, 3.0, 5.0)


def test_usual_place_is_the_line_seen_most_often() -> None:
    stacks = [
        *make.samples(make.stack("data.py", 7, "read"), times=3),
        *make.samples(make.stack("x.py", 1, "f"), times=1),
    ]
    at = usual_place(stacks)
    assert at is not None
    assert (at.line, at.function) == (7, "read")
    assert usual_place([]) is None


def test_running_job_with_a_straggler_is_slow_and_an_ended_one_is_well() -> None:
    times = {0: spent(**USUAL), 1: spent(**{**USUAL, "data": 48.0, "waiting": 2.0}), 2: spent(**USUAL)}
    ranks = [
        make.rank(number, make.stack("train.py", 40, "main"), progress=make.progress(steps=20, phases=phases))
        for number, phases in times.items()
    ]
    asked = conclude(make.evidence(*ranks, trigger="request"))
    assert (asked.outcome, asked.cause, [each.rank for each in asked.culprits]) == ("slow", "slow-rank", [1])
    assert asked.fix
    ended = conclude(make.evidence(*ranks, trigger="end"))
    assert (ended.outcome, ended.cause) == ("ok", None)
    assert [each.rank for each in ended.stragglers] == [1]


@given(st.dictionaries(st.integers(0, 9), st.lists(st.floats(0, 50), min_size=5, max_size=5), max_size=8))
def test_whoever_is_named_waited_less_than_everybody_else(drawn: dict[int, list[float]]) -> None:
    times = {rank: Phases(0.0, 300.0, 2, *values) for rank, values in drawn.items()}
    found = {each.rank for each in find_stragglers(times)}
    others = set(times) - found
    assert 2 * len(found) < len(times) or not found or len(times) == 2
    for rank in found:
        assert all(times[rank].waiting_s < times[other].waiting_s for other in others)
