"""Sends and receives that are meant for each other and do not meet, and waits for one of several messages."""

from __future__ import annotations

import factories as make
import pytest
from msgspec.structs import replace

from rankscope.diagnosis.timeline import build_timeline
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Call, Collective, Frame, Group, RankEvidence
from rankscope.report.conclude import conclude

C10D = "torch/distributed/distributed_c10d.py"


def call(index: int, op: str, line: int, peer: int = -1, *, left: bool = True, seq: int = 0, depth: int = 0) -> Call:
    made = make.call(index, op, make.frame("train.py", line, "exchange"), left=left, seq=seq)
    at = make.NOW - 60 + index
    group = "" if op == "Work.wait" else "0"
    return replace(made, group=group, peer=peer, depth=depth, entered_at=at, left_at=at if left else None)


def rank(number: int, *calls: Call, world: int = 3) -> RankEvidence:
    """A rank whose last call is still open, or that sleeps outside of any."""
    last = calls[-1]
    inside = (make.lib(C10D, last.op),) if last.left_at is None else ()
    return make.rank(
        number,
        make.stack("train.py", last.site[0].line, "exchange", inside),
        processes=make.process("futex" if inside else "clock_nanosleep"),
        progress=make.progress(*calls, world=world, groups=(Group("0", "default_pg", tuple(range(world))),)),
        still_for_s=3.0,
    )


def told(*ranks: RankEvidence) -> Verdict:
    return conclude(make.evidence(*ranks, source={"train.py": "pass\n" * 30}))


def barrier(index: int) -> Call:
    return call(index, "barrier", 20, left=False, seq=1)


def test_the_rank_that_receives_from_another_peer_than_ever_before_is_named() -> None:
    habit = tuple(call(n, "recv", 5, 1) for n in range(6))
    sent = tuple(call(n, "send", 8, 2) for n in range(6))
    verdict = told(
        rank(0, barrier(0)),
        rank(1, *sent, call(6, "send", 8, 2, left=False)),
        rank(2, *habit, call(6, "recv", 5, 0, left=False)),
    )
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-mismatch", "proven")
    assert [culprit.rank for culprit in verdict.culprits] == [2]
    assert verdict.culprits[0].where is not None
    assert verdict.culprits[0].where.line == 5
    assert set(verdict.victims) == {0, 1}


def test_without_a_habit_no_single_rank_is_named_for_a_peer_that_differs() -> None:
    verdict = told(
        rank(0, barrier(0)), rank(1, call(0, "send", 8, 2, left=False)), rank(2, call(0, "recv", 5, 0, left=False))
    )
    assert "names the wrong peer" not in verdict.headline


def test_a_send_and_its_receive_that_both_wait_differ_in_their_tag() -> None:
    verdict = told(
        rank(0, call(0, "send", 8, 1, left=False), world=2), rank(1, call(0, "recv", 5, 0, left=False), world=2)
    )
    assert (verdict.outcome, verdict.cause) == ("hang", "collective-mismatch")
    assert verdict.culprits == ()
    assert [side.ranks for side in verdict.sides] == [(0,), (1,)]
    assert "their tags may differ" in verdict.headline
    assert verdict.certainty == "likely"


@pytest.mark.parametrize(("unsent", "written"), [(4_000_000, 0), (0, 700_000)])
def test_a_message_whose_bytes_are_under_way_is_no_deadlock_however_long_it_takes(unsent: int, written: int) -> None:
    sender = rank(0, call(0, "send", 8, 1, left=False), world=2)
    first, last = sender.processes
    sender = replace(sender, processes=(first, replace(last, unsent_bytes=unsent, write_bytes=written)))
    verdict = told(sender, rank(1, call(0, "recv", 5, 0, left=False), world=2))
    assert verdict.outcome == "ok" or verdict.certainty == "possible"


def test_a_send_that_has_just_met_its_receive_is_a_message_under_way() -> None:
    ranks = (rank(0, call(0, "send", 8, 1, left=False), world=2), rank(1, call(0, "recv", 5, 0, left=False), world=2))
    assert conclude(make.evidence(*ranks, stall_after_s=600.0)).outcome == "ok"


def test_a_wait_for_one_of_two_messages_is_no_deadlock_while_one_of_the_senders_still_works() -> None:
    collecting = rank(0, call(0, "irecv", 5, 1), call(1, "irecv", 5, 2), call(2, "Work.wait", 6, left=False))
    verdict = told(collecting, rank(1, call(0, "isend", 9, 0)), rank(2, call(0, "isend", 9, 0), barrier(1)))
    assert verdict.certainty != "proven"
    assert 0 not in {culprit.rank for culprit in verdict.culprits}


def test_a_wait_for_one_of_two_messages_is_a_deadlock_when_both_senders_wait_for_it() -> None:
    collecting = rank(0, call(0, "irecv", 5, 1), call(1, "irecv", 5, 2), call(2, "Work.wait", 6, left=False))
    verdict = told(collecting, rank(1, barrier(0)), rank(2, barrier(0)))
    assert (verdict.outcome, verdict.certainty) == ("hang", "proven")
    assert verdict.culprits == ()


def batches(count: int, messages: int) -> tuple[Call, ...]:
    """Batches of messages, of which the inner calls name no peer."""
    calls: list[Call] = []
    for _ in range(count):
        calls.append(call(len(calls), "batch_isend_irecv", 7))
        calls.extend(call(len(calls) + n, "isend" if n else "irecv", 7, depth=1) for n in range(messages))
        calls.extend(call(len(calls) + n, "Work.wait", 8) for n in range(messages))
    return tuple(calls)


def test_the_rank_whose_batch_had_fewer_messages_than_all_before_is_named_and_not_the_one_that_waits() -> None:
    whole = batches(5, 2)
    waits = (*whole[:-2], call(len(whole) - 2, "Work.wait", 8, left=False))
    short = (*batches(4, 2), *(replace(c, index=c.index + 20) for c in batches(1, 1)))
    verdict = told(rank(0, *waits), rank(1, *whole, barrier(25)), rank(2, *short, barrier(25)))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-skipped", "proven")
    assert [culprit.rank for culprit in verdict.culprits] == [2]
    assert verdict.culprits[0].where is not None
    assert verdict.culprits[0].where.line == 7
    assert set(verdict.victims) == {0, 1}


def reduction(number: int, group: str, seq: int, *, pending: bool) -> Collective:
    return Collective(
        number, group, seq, 0, "all_reduce", "gloo", False, "scheduled", not pending, make.NOW - 20 + number
    )


def waiting_for_a_handle(sleeper_in: Call) -> Verdict:
    """Rank 0 has begun a reduction with rank 1 and one with rank 2, and waits for one of them; rank 1 waits for a
    message of rank 0 before it comes to the first."""
    groups = (Group("0", "default_pg", (0, 1, 2)), Group("a", "", (0, 1)), Group("b", "", (0, 2)))
    begun = (
        replace(call(0, "all_reduce", 3, seq=1), group="a"),
        replace(call(1, "all_reduce", 4, seq=1), group="b"),
        call(2, "Work.wait", 5, left=False),
    )
    under_way = (reduction(1, "a", 1, pending=True), reduction(2, "b", 1, pending=True))
    done = (reduction(0, "0", 1, pending=False),)
    seen = (
        replace(rank(0, *begun), collectives=(*done, *under_way)),
        replace(rank(1, call(0, "recv", 9, 0, left=False)), collectives=done),
        replace(rank(2, sleeper_in), collectives=done),
    )
    ranks = (
        replace(each, progress=replace(each.progress, groups=groups)) for each in seen if each.progress is not None
    )
    return told(*ranks)


def test_a_wait_for_one_of_two_collectives_is_no_deadlock_while_one_of_them_can_still_come() -> None:
    verdict = waiting_for_a_handle(call(0, "all_gather", 12, seq=1))
    assert verdict.certainty != "proven" or verdict.outcome == "ok"
    assert not {0, 1} & {culprit.rank for culprit in verdict.culprits}


def test_a_wait_for_one_of_two_collectives_is_a_deadlock_when_neither_can_come() -> None:
    verdict = waiting_for_a_handle(call(0, "recv", 12, 0, left=False))
    assert (verdict.outcome, verdict.certainty) == ("hang", "proven")


def served_by_a_thread(*frames: Frame, waits_since: float) -> Verdict:
    """Rank 0 receives from rank 1, whose main thread has gone on and which has a thread of its own beside it."""
    receives = replace(call(0, "recv", 5, 1, left=False), entered_at=make.NOW - waits_since)
    server = rank(1, barrier(0), world=2)
    beside = make.thread((*frames, make.frame("train.py", 25, "serve")), tid=9, main=False, name="server")
    stacks = tuple(replace(sample, threads=(*sample.threads, beside)) for sample in server.stacks)
    return told(rank(0, receives, world=2), replace(server, stacks=stacks))


def test_a_message_that_another_thread_of_the_peer_may_still_send_is_waited_for() -> None:
    assert served_by_a_thread(waits_since=5).outcome == "ok"


def test_a_thread_that_is_idle_sends_nothing_and_no_thread_is_waited_for_long() -> None:
    idle = (make.lib("threading.py", "wait"), make.lib("queue.py", "get"))
    for verdict in (served_by_a_thread(*idle, waits_since=5), served_by_a_thread(waits_since=50)):
        assert (verdict.outcome, verdict.certainty) == ("hang", "proven")


def test_messages_do_not_count_as_collectives_that_a_rank_has_entered() -> None:
    entry = Collective(0, "0", 6, 0, "barrier", "gloo", False, "scheduled", True, 1.0)
    seen = replace(rank(1, call(0, "recv", 5, 0)), collectives=(entry,), last_enqueued={"0": 18})
    assert build_timeline(seen).newest == {"0": 6}
