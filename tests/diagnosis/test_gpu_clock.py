"""Hangs on the GPU while the program has run on: the recorder tells where, the noted calls tell the line."""

from __future__ import annotations

import factories as make
import pytest
from gpu_ranks import GpuRank, job
from msgspec.structs import replace

from rankscope.diagnosis.finding import Ruling
from rankscope.diagnosis.record import read_record
from rankscope.diagnosis.wait_graph import build_graph
from rankscope.evidence.device_work import DeviceWork
from rankscope.evidence.model import Evidence, Gpu, Group, HostEvidence
from rankscope.report.conclude import examine

ROUNDS = 8


def blamed(ruling: Ruling) -> list[tuple[int | None, int | None]]:
    return [(each.rank, each.where.line if each.where is not None else None) for each in ruling.culprits]


def told(evidence: Evidence) -> tuple[str, str | None, list[tuple[int | None, int | None]]]:
    ruling = examine(evidence)
    return ruling.outcome, ruling.cause, blamed(ruling)


# Where the GPU stands.


def test_ends_of_a_group_whose_watchdog_is_gone_are_believed_but_for_the_newest() -> None:
    rank = GpuRank(0)
    for _ in range(4):
        rank.all_reduce(10)
    entries = tuple(replace(entry, retired=entry.seq <= 2) for entry in rank.entries)
    seen = rank.seen(collectives=entries, last_completed={"0": 2})
    record = read_record(seen)
    assert [record.done(entry) for entry in record.collectives] == [True, True, True, False]


def test_a_coalesced_call_is_one_and_ends_when_its_last_entry_does() -> None:
    rank = GpuRank(0)
    rank.coalesced(10, "scheduled", ((8,), (1,)))
    record = read_record(rank.seen())
    [entry] = record.collectives
    assert (entry.input_sizes, record.done(entry)) == (((8,), (1,)), False)


def test_a_batch_of_messages_is_one_and_ends_when_its_last_entry_does() -> None:
    rank = GpuRank(1)
    rank.batch((("send", 2), ("recv", 0)), 10)
    rank.batch((("send", 2), ("recv", 0)), 10, "scheduled")
    record = read_record(rank.seen())
    assert [len(batch.messages) for batch in record.messages] == [2, 2]
    assert [record.done(batch.entries[-1]) for batch in record.messages] == [True, False]


def test_a_rank_whose_gpu_has_not_come_to_a_collective_has_not_joined_it() -> None:
    ranks = [GpuRank(number) for number in range(3)]
    for rank in ranks:
        rank.all_reduce(10)
    ranks[0].all_reduce(20, numel=1)
    for rank in ranks:
        rank.all_reduce(10, "scheduled", numel=64)
    ranks[0].entries[1] = replace(ranks[0].entries[1], state="completed", retired=True)
    graph = build_graph(job(*ranks))
    assert graph.deadlocked == {0, 1, 2}
    assert told(job(*ranks)) == ("hang", "collective-skipped", [(0, 20)])


# Runs ahead.


def test_an_extra_call_that_shows_only_at_the_end_is_named_with_its_line() -> None:
    ranks = [
        GpuRank(number, inside=(make.lib("torch/distributed/distributed_c10d.py", "barrier"),)) for number in range(3)
    ]
    for step in range(30):
        for rank in ranks:
            rank.step = step
            behind = step >= 20
            if step == 20 and rank.rank == 1:
                rank.all_reduce(44, "scheduled", numel=1)
            rank.all_reduce(10, "scheduled" if behind else "completed", numel=512)
    assert told(job(*ranks)) == ("hang", "collective-skipped", [(1, 44)])


def test_a_tensor_missing_from_a_coalesced_reduction_is_a_mismatch_though_the_rank_went_on() -> None:
    ranks = [GpuRank(number) for number in range(3)]
    for _ in range(ROUNDS):
        for rank in ranks:
            rank.coalesced(10, "completed", ((64,), (8,), (1,)))
    for rank in ranks:
        if rank.rank == 1:
            rank.coalesced(10, "completed", ((64,), (8,)))
            rank.all_reduce(20, "scheduled", group="1")
        else:
            rank.coalesced(10, "scheduled", ((64,), (8,), (1,)))
    assert told(job(*ranks)) == ("hang", "collective-mismatch", [(1, 10)])


# Order of groups.


def mesh(odd_rank: int | None, rounds: int = ROUNDS) -> list[GpuRank]:
    """Rows of two in groups of their own, then all together; one rank once the other way round."""
    rows = (Group("1", "", (0, 1)), Group("2", "", (2, 3)))
    ranks = [GpuRank(number, world=4, groups=(*rows, Group("0", "", (0, 1, 2, 3)))) for number in range(4)]
    for _ in range(rounds):
        for rank in ranks:
            rank.all_reduce(10, group=str(1 + rank.rank // 2))
            rank.all_reduce(10)
    for rank in ranks:
        row = str(1 + rank.rank // 2)
        stuck_row = odd_rank is not None and rank.rank // 2 == odd_rank // 2
        if rank.rank == odd_rank:
            rank.all_reduce(10, "scheduled")
            rank.all_reduce(10, "scheduled", group=row)
        else:
            rank.all_reduce(10, "scheduled" if stuck_row else "completed", group=row)
            rank.all_reduce(10, "scheduled")
    return ranks


def test_of_groups_in_another_order_the_rank_that_left_its_own_is_named() -> None:
    assert told(job(*mesh(3))) == ("hang", "group-order-cycle", [(3, 10)])


def test_without_a_habit_nobody_is_named_for_an_order_of_groups() -> None:
    outcome, cause, culprits = told(job(*mesh(3, rounds=1)))
    assert (outcome, cause, culprits) == ("hang", "group-order-cycle", [])


# Messages.


def exchange(rank: GpuRank, right: int, left: int, state: str = "completed") -> None:
    rank.batch((("send", right), ("recv", left), ("send", left), ("recv", right)), 10, state)
    rank.wait(12)


def test_a_batch_with_the_wrong_neighbour_is_named() -> None:
    ranks = [GpuRank(number) for number in range(3)]
    for _ in range(ROUNDS):
        for rank in ranks:
            exchange(rank, (rank.rank + 1) % 3, (rank.rank - 1) % 3)
            rank.all_reduce(20)
    exchange(ranks[0], 1, 2, "scheduled")
    exchange(ranks[1], 2, 0)
    exchange(ranks[2], 1, 1, "scheduled")
    for rank in ranks:
        rank.all_reduce(20, "scheduled")
    assert told(job(*ranks)) == ("hang", "collective-mismatch", [(2, 10)])


def test_a_batch_with_a_message_too_many_is_named() -> None:
    ranks = [GpuRank(number, world=2) for number in range(2)]
    for last in (*[False] * ROUNDS, True):
        for rank in ranks:
            halves = (("send", 1 - rank.rank), ("recv", 1 - rank.rank))
            more = (("recv", 0),) if last and rank.rank == 1 else ()
            rank.batch((*halves, *more), 10, "scheduled" if more else "completed")
            rank.wait(11)
            rank.all_reduce(20, "scheduled" if last else "completed")
    assert told(job(*ranks)) == ("hang", "collective-skipped", [(1, 10)])


def test_a_message_fewer_is_named_though_the_rank_has_gone_on() -> None:
    ranks = [GpuRank(number) for number in range(3)]
    for last in (*[False] * ROUNDS, True):
        for rank in ranks:
            if rank.rank > 0:
                for number in range(3):
                    missing = last and rank.rank == 2 and number == 2
                    rank.irecv(rank.rank - 1, 10, "scheduled" if missing else "completed")
            if rank.rank < 2:
                for _ in range(2 if last and rank.rank == 1 else 3):
                    rank.isend(rank.rank + 1, 15)
            rank.wait(17)
            rank.all_reduce(20, "scheduled" if last else "completed")
    assert told(job(*ranks)) == ("hang", "collective-skipped", [(1, 15)])


def test_messages_that_are_both_there_prove_nothing() -> None:
    """A large message on a slow link: both halves were made, and the reduction behind them waits."""
    ranks = [GpuRank(number, world=2) for number in range(2)]
    for rank in ranks:
        rank.batch((("send", 1 - rank.rank), ("recv", 1 - rank.rank)), 10, "scheduled")
        rank.wait(11)
        rank.all_reduce(20, "scheduled")
    assert not build_graph(job(*ranks)).deadlocked


def test_a_collective_that_overtakes_a_message_nobody_waited_for_is_no_deadlock() -> None:
    """Rank 0 has a receive under way beside the reduction; rank 1 sends after it, and rank 2 is late for it."""
    ranks = [GpuRank(number) for number in range(3)]
    ranks[0].irecv(1, 10, "scheduled")
    for rank in ranks[:2]:
        rank.all_reduce(20, "scheduled")
    ranks[2].all_reduce(19)
    ranks[2].entries.clear()
    ranks[2].calls.clear()
    assert not build_graph(job(*ranks)).deadlocked


# A kernel of its own.


def gpu(*pids: int, work: DeviceWork | None = None) -> tuple[HostEvidence, ...]:
    return (HostEvidence("node-1", gpus=(Gpu(0, "H200", 100, 1, 2, 50, pids, work),), oom_kills=0),)


def work(*, computes: bool) -> DeviceWork:
    share = 0.3 if computes else 0.0
    return DeviceWork(sm=0.01 + share, tensor=0.0, fp32=share, dram=share, power_w=120, memory_util=0.0, counters=True)


def held_up() -> list[GpuRank]:
    """Rank 1's GPU has not come to what the others stand in."""
    ranks = [GpuRank(number, timed=True) for number in range(3)]
    for rank in ranks:
        rank.all_reduce(10)
        rank.all_reduce(10, "scheduled" if rank.rank == 1 else "started")
    return ranks


PIDS = tuple(make.PID + number for number in range(3))


def test_the_rank_whose_gpu_has_not_begun_what_others_stand_in_is_named() -> None:
    ruling = examine(job(*held_up()))
    assert (ruling.outcome, ruling.cause, ruling.certainty) == ("hang", "gpu-stuck", "likely")
    assert blamed(ruling) == [(1, 90)]


def test_before_the_threshold_a_gpu_that_is_late_is_only_possibly_stuck() -> None:
    assert examine(job(*held_up(), stall_after_s=100.0)).certainty == "possible"


def test_a_gpu_of_its_own_that_computes_is_slow_and_not_stuck() -> None:
    ruling = examine(job(*held_up(), hosts=gpu(PIDS[1], work=work(computes=True))))
    assert (ruling.outcome, ruling.cause) == ("slow", "slow-rank")


def test_work_on_a_shared_gpu_speaks_for_nobody_in_particular() -> None:
    ruling = examine(job(*held_up(), hosts=gpu(*PIDS, work=work(computes=True))))
    assert (ruling.outcome, ruling.cause) == ("hang", "gpu-stuck")


def test_ranks_that_all_compute_before_a_collective_do_not_wait_for_each_other() -> None:
    ranks = [GpuRank(number, timed=True) for number in range(3)]
    for rank in ranks:
        rank.all_reduce(10)
        rank.all_reduce(10, "started" if rank.rank == 0 else "scheduled")
    graph = build_graph(job(*ranks))
    assert not graph.deadlocked
    assert graph.edges[0] == {1, 2}
    assert graph.edges[1] == graph.edges[2] == frozenset()


def test_a_collective_that_has_begun_beside_an_older_message_has_joined() -> None:
    ranks = [GpuRank(number, world=2, timed=True) for number in range(2)]
    ranks[0].irecv(1, 10, "started")
    ranks[0].wait(11)
    for rank in ranks:
        rank.all_reduce(20, "started")
    assert build_graph(job(*ranks)).edges[1] == frozenset()


# The watchdog.


def test_a_rank_at_work_when_the_watchdog_of_others_gives_up_is_named_at_once() -> None:
    """They still live: torch takes them down a minute later."""
    ranks = [GpuRank(number) for number in range(3)]
    for rank in ranks:
        rank.all_reduce(10)
    for rank in ranks[1:]:
        rank.all_reduce(10, "scheduled")
    at_work = ranks[0].seen(
        stacks=tuple(
            replace(sample, threads=(make.stack("train.py", 50 + number, "prepare"),))
            for number, sample in enumerate(make.samples())
        )
    )
    said = ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)",)
    others = tuple(rank.seen(error_tail=said) for rank in ranks[1:])
    quiet = examine(make.evidence(at_work, *(rank.seen() for rank in ranks[1:])))
    assert (quiet.outcome, quiet.cause) == ("slow", "slow-rank")
    ruling = examine(make.evidence(at_work, *others))
    assert (ruling.outcome, ruling.cause, [each.rank for each in ruling.culprits]) == ("hang", "slow-rank", [0])


# The end of a program.

SKIPS = """
def main():
    for step in range(200):
        loss.backward()
        batches += lengths[step] > 0 and tally(loss)
    mean = total.item()
    dist.destroy_process_group()

def tally(loss):
    dist.all_reduce(loss, group=reports)
"""


def test_a_rank_that_leaves_its_groups_cannot_come_to_a_call_any_more() -> None:
    """It skipped the last calls of a group, had all the rest done and leaves; the others wait for their result."""
    ranks = [GpuRank(number, line=6) for number in range(3)]
    for step in range(20):
        for rank in ranks:
            rank.step = step
            rank.all_reduce(4, numel=512)
            if rank.rank != 2 or step < 15:
                rank.all_reduce(5, "completed" if step < 15 else "scheduled", numel=1, group="1")
    ranks[2].leave(7)
    for rank in ranks:
        inner = make.frame("train.py", 10, "tally")
        rank.calls = [
            replace(call, site=(inner, *call.site)) if call.site[0].line == 5 else call for call in rank.calls
        ]
    seen = make.evidence(*(rank.seen() for rank in ranks), source={"train.py": SKIPS})
    ruling = examine(seen)
    assert (ruling.outcome, ruling.cause, ruling.certainty) == ("hang", "collective-skipped", "proven")
    assert blamed(ruling) == [(2, 5)]


def test_a_rank_that_leaves_while_the_others_work_on_is_no_hang() -> None:
    ranks = [GpuRank(number) for number in range(3)]
    for rank in ranks:
        rank.all_reduce(4)
    ranks[2].leave(7)
    assert not build_graph(job(*ranks)).deadlocked


def test_a_call_that_a_rank_passed_by_is_told_where_all_have_run_on_to_the_same_line() -> None:
    """Two groups: the others have queued the reduction that the culprit waits in behind the one that it skipped."""
    ranks = [GpuRank(number, line=6) for number in range(3)]
    for step in range(20):
        for rank in ranks:
            rank.step = step
            ahead = step > 15 or (step == 15 and rank.rank == 2)
            rank.all_reduce(4, "scheduled" if ahead else "completed", numel=512)
            if rank.rank != 2 or step < 15:
                rank.step = step + 1
                rank.all_reduce(5, "completed" if step < 15 else "scheduled", numel=1, group="1")
    for rank in ranks:
        inner = make.frame("train.py", 10, "tally")
        rank.calls = [
            replace(call, site=(inner, *call.site)) if call.site[0].line == 5 else call for call in rank.calls
        ]
    ranks[2].entries[30] = replace(ranks[2].entries[30], state="completed", retired=True)
    ruling = examine(make.evidence(*(rank.seen() for rank in ranks), source={"train.py": SKIPS}))
    assert (ruling.outcome, ruling.cause, ruling.certainty) == ("hang", "collective-skipped", "proven")
    assert blamed(ruling) == [(2, 5)]


# A loop that launches kernel after kernel.

SETTLES = """
def settle(state, matrix):
    change = 1.0
    while change > 1e-4:
        following = torch.tanh(state @ matrix)
        change = (following - state).abs().max().item()
        state = following
    return state

def main():
    for step in range(300):
        settled = settle(start, coupling(step))
        dist.all_reduce(settled)
"""


def looping(work_: DeviceWork | None) -> Evidence:
    """Rank 2 turns in its loop, always seen where it reads from its GPU; the others' GPUs stand in the reduction."""
    ranks = [GpuRank(number, line=13, timed=True) for number in range(3)]
    for step in range(12):
        for rank in ranks:
            if step < 11 or rank.rank != 2:
                rank.all_reduce(13, "completed" if step < 11 else "started")
    frames = (make.frame("train.py", 6, "settle"), make.frame("train.py", 12, "main"))
    turning = ranks[2].seen(stacks=make.samples(make.thread(frames)), earlier_stacks=make.samples(make.thread(frames)))
    return make.evidence(
        *(rank.seen() for rank in ranks[:2]), turning, source={"train.py": SETTLES}, hosts=gpu(*PIDS, work=work_)
    )


@pytest.mark.parametrize("share", [None, 0.0001, 0.000001])
def test_an_endless_loop_of_small_kernels_is_named_and_not_its_gpu(share: float | None) -> None:
    small = None if share is None else DeviceWork(0.02, 0.0, share, share, 121, 0.0, counters=True)
    ruling = examine(looping(small))
    assert (ruling.outcome, ruling.cause, blamed(ruling)) == ("hang", "endless-loop", [(2, 6)])
