"""Shares of an all_to_all that do not fit: whose fault it is, and what came of it."""

from __future__ import annotations

import pytest
from factories import NOW, call, ended, evidence, frame, progress, rank
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Evidence, Exit, Group, RankEvidence
from rankscope.report.conclude import conclude

LINE = frame("train.py", 30, "exchange")
Plan = list[list[int]]
"""Sender → receiver → elements; what the receivers expect is another such table."""


def _rank(number: int, plans: list[tuple[Plan, Plan]], *, left: bool = True, exit: Exit | None = None) -> RankEvidence:
    """`plans`: of every call what is sent, and what is expected; the last call is left or not."""
    world = len(plans[0][0])
    calls = []
    for at, (sent, expected) in enumerate(plans):
        last = at == len(plans) - 1
        made = call(at, "all_to_all_single", LINE, seq=at + 1, left=left or not last)
        calls.append(
            replace(
                made,
                group="0",
                entered_at=NOW - 60 + at,
                left_at=NOW - 59.9 + at if made.left_at is not None else None,
                sends=tuple(sent[number]),
                receives=tuple(row[number] for row in expected),
            )
        )
    group = Group("0", "default_pg", tuple(range(world)))
    return rank(number, progress=replace(progress(*calls, world=world), groups=(group,)), exit=exit)


def _even(world: int, share: int = 4) -> Plan:
    return [[share] * world for _ in range(world)]


def _job(plans: list[tuple[Plan, Plan]], *, left: bool = True, exit: Exit | None = None) -> Evidence:
    world = len(plans[0][0])
    return evidence(*(_rank(number, plans, left=left, exit=exit) for number in range(world)))


def _verdict(wrong: tuple[Plan, Plan], *, before: int = 8, after: int = 3, left: bool = True) -> Verdict:
    world = len(wrong[0])
    fits = (_even(world), _even(world))
    return conclude(_job([fits] * before + [wrong] + [fits] * after, left=left))


def _sent(world: int, sender: int, *shares: int) -> tuple[Plan, Plan]:
    sent = _even(world)
    sent[sender] = list(shares)
    return sent, _even(world)


def test_who_has_a_part_in_every_misfit_is_named() -> None:
    found = _verdict(_sent(3, 1, 3, 4, 5))
    assert (found.outcome, found.cause, found.certainty) == ("corrupt", "collective-mismatch", "proven")
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert found.victims == (0, 2)
    where = found.culprits[0].where
    assert where is not None
    assert where.line == 30


def test_of_two_who_disagree_the_one_that_changed_is_named() -> None:
    found = _verdict(_sent(3, 1, 4, 8, 0))
    assert (found.outcome, [culprit.rank for culprit in found.culprits]) == ("corrupt", [1])


def test_a_receiver_that_expects_other_shares_than_ever_is_named() -> None:
    expected = _even(3)
    expected[0][2] = 6
    found = _verdict((_even(3), expected))
    assert [culprit.rank for culprit in found.culprits] == [2]


def test_without_a_habit_nobody_is_named() -> None:
    plans = []
    for step in range(8):
        plan = [[1 + (sender + receiver + step) % 3 for receiver in range(3)] for sender in range(3)]
        plans.append((plan, plan))
    wrong = [list(row) for row in plans[-1][0]]
    wrong[1][2] += 5
    found = conclude(_job([*plans, (wrong, plans[-1][0]), *plans[:2]]))
    assert (found.outcome, found.cause, found.culprits) == ("corrupt", "collective-mismatch", ())


def test_nobody_is_named_where_all_others_changed() -> None:
    """Rank 1 does as ever; all its partners sent it another share at once."""
    sent = _even(3)
    sent[0][1] = sent[2][1] = 7
    found = _verdict((sent, _even(3)))
    assert found.culprits == ()


def test_a_rank_that_stays_in_the_call_makes_it_a_hang() -> None:
    plans = [(_even(3), _even(3))] * 8 + [_sent(3, 1, 3, 4, 5)]
    found = conclude(_job(plans, left=False))
    assert (found.outcome, found.cause, [culprit.rank for culprit in found.culprits]) == (
        "hang", "collective-mismatch", [1],
    )  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
def test_shares_that_fit_are_no_finding(world: int) -> None:
    found = conclude(_job([(_even(world), _even(world))] * 9, exit=ended(0)))
    assert found.outcome == "ok"
