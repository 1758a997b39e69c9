"""A message that never comes while its sender has gone on to a collective."""

from __future__ import annotations

import factories as make
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Call, Group, RankEvidence
from rankscope.report.conclude import conclude

C10D = "torch/distributed/distributed_c10d.py"
SOURCE = """\
def exchange(rank, messages):
    for _ in range(messages):
        if rank == 0:
            dist.send(x, dst=1)
        else:
            dist.recv(x, src=rank - 1)
    dist.barrier()
"""


def call(index: int, op: str, line: int, peer: int, *, left: bool = True, seq: int = 0) -> Call:
    site = make.frame("train.py", line, "exchange")
    return replace(make.call(index, op, site, left=left, seq=seq), group="0", peer=peer)


def rank(number: int, op: str, peer: int, line: int, calls: tuple[Call, ...]) -> RankEvidence:
    groups = (Group("0", "default_pg", (0, 1, 2)),)
    return make.rank(
        number,
        make.stack("train.py", line, "exchange", (make.lib(C10D, op),)),
        processes=make.process("futex"),
        progress=make.progress(
            *calls,
            replace(call(len(calls), op, line, peer, left=False, seq=int(op == "barrier")), entered_at=make.NOW - 25),
            world=3,
            groups=groups,
        ),
        still_for_s=25.0,
    )


def told(before: int) -> Verdict:
    """Rank 0 sends one message fewer than rank 1 waits for; rank 2 waits for what rank 1 would pass on."""
    sent = tuple(call(n, "send", 4, 1) for n in range(before))
    received = tuple(call(n, "recv", 6, 0) for n in range(before))
    passed_on = tuple(call(n, "recv", 6, 1) for n in range(before))
    ranks = (rank(0, "barrier", -1, 7, sent), rank(1, "recv", 0, 6, received), rank(2, "recv", 1, 6, passed_on))
    return conclude(make.evidence(*ranks, source={"train.py": SOURCE}))


def test_neither_a_waiting_receiver_nor_its_successor_is_blamed_for_a_message_that_never_came() -> None:
    verdict = told(before=8)
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-skipped", "proven")
    assert verdict.culprits == ()
    assert set(verdict.victims) == {0, 1, 2}
    assert "rank 0 has gone on to the barrier at exchange (train.py:7)" in verdict.headline


def test_a_receive_that_was_never_made_before_stays_a_matter_of_the_branch() -> None:
    assert {culprit.rank for culprit in told(before=0).culprits} != {0}


def chain(sent_in_last_step: int, received_by_middle: int) -> Verdict:
    """Rank 0 sends to rank 1, which passes on to rank 2: one or two messages in a step, in the last one as told. Rank 2
    waits for one more, the others have gone on to the barrier."""

    def made(*messages: tuple[str, int, int], last: tuple[int, ...]) -> tuple[Call, ...]:
        steps = [(step, (1 + step % 2,) * len(last) if step < 6 else last) for step in range(7)]
        calls = [
            (step, message)
            for step, numbers in steps
            for message, number in zip(messages, numbers, strict=True)
            for _ in range(number)
        ]
        return tuple(_earlier(call(n, *message), step, n) for n, (step, message) in enumerate(calls))

    first = made(("send", 4, 1), last=(received_by_middle,))
    middle = made(("recv", 6, 0), ("send", 4, 2), last=(received_by_middle, sent_in_last_step))
    last = made(("recv", 6, 1), last=(sent_in_last_step,))
    ranks = [rank(0, "barrier", -1, 7, first), rank(1, "barrier", -1, 7, middle), rank(2, "recv", 1, 6, last)]
    return conclude(make.evidence(*map(_waiting_since, ranks), source={"train.py": SOURCE}))


def _earlier(each: Call, step: int, number: int) -> Call:
    at = make.NOW - 59 + number
    return replace(each, step=step, entered_at=at, left_at=at + 0.5)


def _waiting_since(seen: RankEvidence) -> RankEvidence:
    assert seen.progress is not None
    *calls, last = seen.progress.calls
    return replace(
        seen, progress=replace(seen.progress, calls=(*calls, replace(last, entered_at=make.NOW - 25, step=5)))
    )


def test_a_rank_that_expects_more_than_two_others_agree_on_is_named() -> None:
    verdict = chain(sent_in_last_step=1, received_by_middle=1)
    assert [(culprit.rank, culprit.where and culprit.where.line) for culprit in verdict.culprits] == [(2, 6)]
    assert any("now it alone waits for one more" in text for text in verdict.because)


def test_a_rank_in_the_middle_that_passes_on_too_little_leaves_it_open_who_is_wrong() -> None:
    verdict = chain(sent_in_last_step=1, received_by_middle=2)
    assert 2 not in {culprit.rank for culprit in verdict.culprits}


def _early(made: Call) -> Call:
    at = make.NOW - 90 + made.index / 4
    return replace(made, entered_at=at, left_at=at + 0.1)


def stage(rounds: list[int], passes_on: bool) -> Verdict:
    """A stage that receives micro-batches and passes them on, then gradients the other way, so many in each round; and
    the next one, which always gets four and sends four back. Both wait for the other now."""
    middle: list[tuple[str, int, int]] = []
    for count in rounds:
        middle += [("recv", 10, 0), ("send", 11, 2)] * count + [("recv", 12, 2), ("send", 13, 0)] * count
    middle += [("recv", 10, 0), ("send", 11, 2)] * (4 if passes_on else 3)
    last = ([("recv", 20, 1)] * 4 + [("send", 21, 1)] * 4) * len(rounds) + [("recv", 20, 1)] * 3
    first = ([("send", 30, 1)] * 4 + [("recv", 31, 1)] * 4) * len(rounds) + [("send", 30, 1)] * 4

    def waiting(number: int, made: list[tuple[str, int, int]], line: int, peer: int) -> RankEvidence:
        calls = tuple(_early(call(index, *each)) for index, each in enumerate(made))
        return rank(number, "recv", peer, line, calls)

    return conclude(make.evidence(waiting(0, first, 31, 1), waiting(1, middle, 12, 2), waiting(2, last, 20, 1)))


def test_a_stage_that_turns_back_one_message_early_is_named_by_its_own_rounds() -> None:
    verdict = stage([4] * 8, passes_on=False)
    assert (verdict.outcome, verdict.cause) == ("hang", "collective-skipped")
    assert [culprit.rank for culprit in verdict.culprits] == [1]


def test_a_stage_whose_rounds_were_never_alike_is_not_named() -> None:
    assert stage([4, 3, 2, 4, 3, 2, 4, 3], passes_on=False).culprits == ()


def test_a_stage_that_did_as_ever_is_not_named() -> None:
    assert 1 not in {culprit.rank for culprit in stage([4] * 8, passes_on=True).culprits}
