"""The aligned diff: a planted edit is found on the rank and at the call where it was planted, or two sides are told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnosis.sequences import Item, Parting, align
from searching import searched

A, B, C, X = (Item(("all_reduce", size, "", -1), (("train.py", size),)) for size in (10, 20, 30, 40))


def with_steps(calls: list[Item], every: int) -> list[Item]:
    return [Item(call.what, call.path, at // every) for at, call in enumerate(calls)]


def odd(parting: Parting | None) -> dict[str, set[int]]:
    assert parting is not None
    assert parting.decided
    return {str(each.kind): set(each.ranks) for each in parting.classes[1:]}


def test_sequences_that_agree_have_no_parting() -> None:
    assert align({0: [A, B] * 5, 1: [A, B] * 5}) is None
    assert align({0: [A]}) is None


def test_a_skipped_call_in_a_loop() -> None:
    usual, short = [A, B, C] * 6, [A, B, C, A, C, *[A, B, C] * 4]
    parting = align({0: usual, 1: short, 2: usual})
    assert parting is not None
    assert parting.at == 4
    assert odd(parting) == {"skipped": {1}}


def test_an_extra_call_in_a_loop() -> None:
    parting = align({0: [A, B, C] * 6, 1: [A, B, C] * 6, 2: [A, B, C, A, X, B, C, A, B, C]})
    assert parting is not None
    assert parting.at == 4
    assert odd(parting) == {"extra": {2}}


def test_another_call_in_place_of_the_usual_one() -> None:
    usual = [A, B, C] * 6
    parting = align({0: usual, 1: [*usual[:7], X, *usual[8:]], 2: usual})
    assert parting is not None
    assert parting.at == 7
    assert odd(parting) == {"changed": {1}}


def test_one_call_from_two_lines_is_no_edit() -> None:
    here, there = (Item(("broadcast", 5, "", 0), (("train.py", line),)) for line in (8, 10))
    assert align({0: [A, here] * 5, 1: [A, there] * 5, 2: [A, there] * 5}) is None


def test_an_edit_after_calls_from_two_lines_is_found() -> None:
    here, there = (Item(("broadcast", 5, "", 0), (("train.py", line),)) for line in (8, 10))
    usual = [A, there, B] * 6
    parting = align({0: [A, here, B] * 4 + [A, here, C], 1: usual, 2: usual})
    assert parting is not None
    assert parting.at == 14


def test_an_extra_call_that_met_one_of_a_run_is_found_where_the_run_ends() -> None:
    """Without optimizer steps: the sequences differ by a line once, and by a call at their end."""
    stray = Item(A.what, (("train.py", 99),))
    usual = [*[A] * 10, C]
    parting = align({0: [*[A] * 4, stray, *[A] * 6], 1: usual, 2: usual})
    assert parting is not None
    assert parting.at == 4
    assert odd(parting) == {"extra": {0}}


def test_a_call_skipped_in_a_run_of_equal_calls_is_found_by_its_step() -> None:
    usual = [*with_steps([A] * 10, 1), Item(C.what, C.path, 10)]
    short = [call for call in usual if call.step != 6]
    parting = align({0: usual, 1: usual, 2: short})
    assert parting is not None
    assert parting.at == 6
    assert odd(parting) == {"skipped": {2}}


def test_a_rank_that_has_not_come_is_absent() -> None:
    parting = align({0: [A, B, C], 1: [A, B], 2: [A, B, C]})
    assert parting is not None
    assert [(each.ranks, each.absent) for each in parting.classes] == [((0, 2), False), ((1,), True)]


def test_two_ranks_are_two_sides() -> None:
    parting = align({0: [A, B, C], 1: [A, C]})
    assert parting is not None
    assert not parting.decided


@dataclass(frozen=True)
class Job:
    """Ranks that run one loop, and what some of them did otherwise."""

    sequences: dict[int, list[Item | None]]
    odd: frozenset[int]
    at: int
    seen: bool
    """The edit lies within what is known."""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A loop of calls, some of them equal, several passes a step; an edit on a minority of the ranks, at any place; the
    ranks stop where they no longer fit together, or run on for a while as NCCL does; the beginning may be lost."""
    lines = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    body = [Item(("all_reduce", 8 * line, "", -1), (("train.py", line),)) for line in lines]
    rounds = draw(st.integers(3, 12))
    passes = draw(st.integers(1, 3))
    labelled = draw(st.booleans())
    usual = [
        Item(call.what, call.path, number // passes if labelled else -1) for number in range(rounds) for call in body
    ]
    end = Item(("barrier", -1, "", -1), (("train.py", 90),), rounds // passes if labelled else -1)
    usual = [*usual, end]
    ranks = draw(st.integers(3, 7))
    guilty = draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=(ranks - 1) // 2))
    at = draw(st.integers(0, len(usual) - 2))
    kind = draw(st.sampled_from(["extra", "skipped", "changed"]))
    stray = Item(("all_gather", 7, "", -1), (("train.py", 77),), usual[at].step)
    if draw(st.booleans()):
        stray = Item(usual[at].what, (("train.py", 77),), usual[at].step)  # it pairs with what the others call
    changed = list(usual)
    if kind == "extra":
        changed.insert(at, stray)
    elif kind == "skipped":
        del changed[at]
    else:
        changed[at] = Item(("all_gather", 7, "", -1), (("train.py", 77),), usual[at].step)
    length = draw(st.integers(at + 1, len(usual)))
    lost = draw(st.integers(0, at))
    sequences: dict[int, list[Item | None]] = {}
    for rank in range(ranks):
        mine = changed if rank in guilty else usual
        sequences[rank] = list(mine[lost:length])
    return Job(sequences, frozenset(guilty), at - lost, seen=True)


@searched(400)
@given(jobs())
def test_no_other_rank_than_the_planted_one_is_ever_the_odd_one(job: Job) -> None:
    parting = align(job.sequences)
    if parting is None or not parting.decided:
        return
    named = {rank for each in parting.classes[1:] for rank in each.ranks}
    assert named == job.odd


@searched(400)
@given(jobs())
def test_an_edit_that_can_be_seen_is_found_and_never_too_early(job: Job) -> None:
    parting = align(job.sequences)
    first, other = (next(s for r, s in job.sequences.items() if (r in job.odd) == guilty) for guilty in (False, True))
    if parting is None:
        # Nothing shows it: as far as all is known they are the same calls, or one call from two lines.
        fits = [a is not None and b is not None and a.what == b.what for a, b in zip(first, other, strict=False)]
        assert all(fits)
        return
    assert parting.at >= min(
        job.at, next((n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), job.at)
    )


@pytest.mark.parametrize("kind", ["extra", "skipped"])
@pytest.mark.parametrize("at", [3, 10, 16])
def test_the_first_edit_counts_however_many_calls_later_the_job_stopped(kind: str, at: int) -> None:
    usual = [A, B, C] * 60
    other = list(usual)
    if kind == "extra":
        other.insert(at, X)
    else:
        del other[at]
    parting = align({0: usual[:150], 1: usual[:150], 2: other[:150]})
    assert parting is not None
    assert parting.at == at
    assert odd(parting) == {kind: {2}}
