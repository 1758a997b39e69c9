"""A process that gloo ended is not blamed for that: the record says who left the common way, or nobody is named."""

from __future__ import annotations

import factories as make
from ended_ranks import MISMATCH, RESET, victim
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Call, Frame, RankEvidence
from rankscope.report.conclude import conclude

PROGRAM = """\
def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)

def main():
    for step in range(200):
        if step == 40 and rank == 0:
            dist.all_reduce(statistics)
        average(model)
"""
FILE = "train.py"
AVERAGE = make.frame(FILE, 3, "average")
EXTRA = make.frame(FILE, 8, "main")


def reduce(seq: int, site: Frame, numel: int, left: bool = True) -> Call:
    return replace(make.call(seq - 1, "all_reduce", site, seq=seq, left=left), numel=numel, dtype="float32")


def history(*last: Call) -> tuple[Call, ...]:
    return (*(reduce(seq, AVERAGE, 4) for seq in range(1, 9)), *last)


def dead(number: int, *calls: Call) -> RankEvidence:
    return make.rank(
        number, exit=make.ended(-6), error_tail=MISMATCH, progress=make.progress(*history(*calls), world=3)
    )


def lost(number: int, *calls: Call) -> RankEvidence:
    return victim(number, RESET, progress=make.progress(*history(*calls), world=3))


def verdict(*ranks: RankEvidence) -> Verdict:
    return conclude(make.evidence(*ranks, source={FILE: PROGRAM}))


def test_who_made_the_extra_call_is_blamed_and_not_the_rank_that_died_of_it() -> None:
    extra, usual = reduce(9, EXTRA, 4096, left=False), reduce(9, AVERAGE, 4, left=False)

    told = verdict(lost(0, extra), lost(1, usual), dead(2, usual))

    assert (told.outcome, told.cause) == ("crash", "collective-mismatch")
    assert [culprit.rank for culprit in told.culprits] == [0]
    assert told.culprits[0].where is not None
    assert told.culprits[0].where.line == 8
    assert told.victims == (1, 2)


def test_the_rank_that_died_is_blamed_where_it_alone_differed() -> None:
    usual, odd = reduce(9, AVERAGE, 4, left=False), reduce(9, AVERAGE, 2, left=False)

    told = verdict(lost(0, usual), lost(1, usual), dead(2, odd))

    assert [culprit.rank for culprit in told.culprits] == [2]


def test_nobody_is_blamed_where_two_ranks_differ_at_one_line() -> None:
    told = verdict(lost(0, reduce(9, AVERAGE, 8, left=False)), dead(1, reduce(9, AVERAGE, 4, left=False)))

    assert (told.outcome, told.cause) == ("crash", "collective-mismatch")
    assert told.culprits == ()
    assert told.victims == (0, 1)
    assert "all_reduce of 8 elements" in told.headline


def test_a_rank_that_died_in_a_call_that_all_others_made_differed_from_them() -> None:
    constructor = make.frame(FILE, 5, "main")
    inside = make.call(8, "_broadcast_coalesced", constructor, left=False)
    made = make.call(8, "_broadcast_coalesced", constructor)

    told = verdict(lost(0, made), lost(1, made), dead(2, inside))

    assert [culprit.rank for culprit in told.culprits] == [2]


def rounds(count: int, *last: str, each: tuple[str, ...] = ("backward", "all_reduce")) -> tuple[Call, ...]:
    """Backward passes, whose own collectives are not written down, each followed by a small reduction."""
    calls: list[Call] = []
    for op in (*(each * count), *last):
        line, group, seq = (8, "", 0) if op == "backward" else (3, "default_pg", sum(bool(c.seq) for c in calls) + 1)
        call = make.call(len(calls), op, make.frame(FILE, line, "main"), seq=seq)
        at = make.NOW - 60 + len(calls)
        calls.append(replace(call, group=group, numel=1, entered_at=at, left_at=at))
    return (*calls[:-1], replace(calls[-1], left_at=None))


def parted_after(count: int, each: tuple[str, ...] = ("backward", "all_reduce")) -> Verdict:
    """Rank 0 reduces as in every round; rank 1 leaves out the last call of one and is in its next backward pass."""
    whole, short = rounds(count, *each, each=each), rounds(count, *each[:-1], "backward", each=each)
    return verdict(
        make.rank(0, exit=make.ended(-6), error_tail=MISMATCH, progress=make.progress(*whole, world=2)),
        victim(1, RESET, progress=make.progress(*short, world=2)),
    )


def test_the_rank_that_left_out_the_call_of_every_round_is_blamed_though_it_died_of_nothing() -> None:
    told = parted_after(6)

    assert (told.outcome, told.cause) == ("crash", "collective-mismatch")
    assert [culprit.rank for culprit in told.culprits] == [1]
    assert told.victims == (0,)


def test_the_last_of_two_calls_from_one_line_is_missed_by_what_came_before_it() -> None:
    told = parted_after(6, ("backward", "all_reduce", "all_reduce"))

    assert [culprit.rank for culprit in told.culprits] == [1]
    assert told.victims == (0,)


def test_nobody_is_blamed_for_leaving_out_a_call_that_was_made_only_a_few_times_before() -> None:
    assert parted_after(1).culprits == ()
