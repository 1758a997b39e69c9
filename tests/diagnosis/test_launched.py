"""NCCL jobs that nobody prepared: their stacks, RAS counts and GPU counters, as recorded on an H200."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import factories as make
import pytest
from msgspec.structs import replace

from rankscope.diagnosis.attached import as_watched, with_stillness
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.communicators import CommMember, Communicator, LostProcess, RasLook
from rankscope.evidence.device_work import DeviceWork
from rankscope.evidence.model import (
    Evidence,
    Frame,
    Gpu,
    HostEvidence,
    ProcessSample,
    RankEvidence,
    Source,
    StackSample,
)
from rankscope.evidence.ras_text import parse_answer
from rankscope.report.conclude import examine, pronounce

RECORDED = Path(__file__).parents[1] / "evidence" / "ras"
WATCHED_S = 5.0
HANGS = DeviceWork(0.0071, 0.0, 0.0, 0.00006, 122.0, 0.0, True, 0.0, 0.0, 700.0)
WORKS = DeviceWork(0.307, 0.000001, 0.2286, 0.0138, 278.9, 0.02, True, 0.0, 0.0, 700.0)
TINY = DeviceWork(0.0148, 0.000001, 0.000045, 0.00016, 121.0, 0.0, True, 0.0, 0.0, 700.0)
OLDER = DeviceWork(None, None, None, None, 130.0, 0.01, False, None, None, 400.0)
ITEM = tuple(
    Frame(name, file, 0, user=False, native=True)
    for name, file in (
        ("0x7fe99b8121e3", "libcuda.so.580.159.04"),
        ("cuStreamSynchronize", "libcuda.so.580.159.04"),
        ("cudaStreamSynchronize", "libcudart.so.13"),
        ("at::native::_local_scalar_dense_cuda", "libtorch_cuda.so"),
        ("torch::autograd::THPVariable_item", "libtorch_python.so"),
    )
)


def stacks(lines: tuple[int, ...], native: tuple[Frame, ...] | None) -> tuple[StackSample, ...]:
    """A sample on each of the lines, a second apart, and one with native frames on the last."""
    found = [
        StackSample(make.NOW - WATCHED_S + n, (make.stack("train.py", line, "train"),), "py-spy")
        for n, line in enumerate(lines)
    ]
    if native is not None:
        found.append(StackSample(make.NOW, (make.stack("train.py", lines[-1], "train", native),), "py-spy-native"))
    return tuple(found)


def processes(cpu_share: float, sleeps: int = 0, io: int = 0) -> tuple[ProcessSample, ...]:
    first, last = make.process(cpu=cpu_share * WATCHED_S, sleeps=sleeps, io=io, state="R")
    return replace(first, at=make.NOW - WATCHED_S), last


def spinning(number: int, pid: int, line: int = 69, **fields: Any) -> RankEvidence:
    """In `.item()`, using two cores."""
    options = {"stacks": stacks((line, line, line), ITEM), "processes": processes(2.0, sleeps=40), **fields}
    return replace(make.rank(number, **options), pid=pid)


def moving(number: int, pid: int) -> RankEvidence:
    return replace(make.rank(number, stacks=stacks((31, 32, 31), None), processes=processes(1.0)), pid=pid)


def asleep(number: int, pid: int) -> RankEvidence:
    waits = make.stack("train.py", 88, "push_metrics", (make.lib("socket.py", "recv_into"),))
    seen = tuple(StackSample(make.NOW - WATCHED_S + n, (waits,), "py-spy") for n in range(3))
    return replace(make.rank(number, stacks=seen, processes=make.process("recvfrom")), pid=pid)


def looks(answer: RasLook, later: RasLook | None = None) -> tuple[RasLook, ...]:
    return replace(answer, at=make.NOW - WATCHED_S), replace(later or answer, at=make.NOW)


def recorded(name: str) -> tuple[RasLook, ...]:
    return looks(parse_answer((RECORDED / f"{name}.txt").read_text(), at=0.0))


def counted(*counts: dict[str, int], size: int | None = None, members: tuple[int, ...] = ()) -> Communicator:
    """A communicator in which rank `n` has launched `counts[n]`; processes count from 100."""
    ranks = members or tuple(range(len(counts)))
    found = tuple(
        CommMember(n, 100 + rank, "192.0.2.2", 0, "running", launched)
        for n, (rank, launched) in enumerate(zip(ranks, counts, strict=True))
    )
    return Communicator(f"c{ranks}", size or len(counts), found)


def job(
    *ranks: RankEvidence, ras: tuple[RasLook, ...] = (), work: DeviceWork | None = HANGS, world: int = 0
) -> Evidence:
    gpu = Gpu(0, "NVIDIA H200", 100, 5, 140, 40, tuple(seen.pid for seen in ranks), work)
    hosts = (HostEvidence("node-1", gpus=(gpu,), ras=ras),)
    source = {"train.py": "\n" * 68 + "value = loss.item()\n" + "\n" * 30}
    return replace(make.evidence(*ranks, hosts=hosts, source=source), trigger="attach", world_size=world or len(ranks))


def attached(evidence: Evidence) -> Verdict:
    evidence = with_stillness(evidence, WATCHED_S)
    return pronounce(as_watched(examine(evidence), evidence))


def blamed(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def test_the_rank_that_launched_fewer_is_named_with_the_counts() -> None:
    verdict = attached(job(*(spinning(n, 1339 + n) for n in range(3)), ras=recorded("plateau_counter")))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-skipped", "likely")
    assert (blamed(verdict), verdict.victims) == ([2], (0, 1))
    assert verdict.headline == "rank 2 has launched 190 AllReduce calls where the others launched 200."
    assert any("rank 2 190, ranks 0, 1 200, and none more in 5 s" in line for line in verdict.because)


SAVES = """
import torch.distributed as dist
def save(model):
    if dist.get_rank() != 0:
        return
    dist.barrier()
"""


def test_who_launched_fewer_is_not_named_where_the_others_passed_by_its_call() -> None:
    barrier = make.lib("torch/distributed/distributed_c10d.py", "barrier")
    plain, native = (make.stack("save.py", 6, "save", inner) for inner in ((barrier,), (*ITEM, barrier)))
    samples = ((plain, "py-spy"), (plain, "py-spy"), (native, "py-spy-native"))
    seen = tuple(StackSample(make.NOW - 2 + n, (stack,), source) for n, (stack, source) in enumerate(samples))
    ranks = (spinning(0, 100, stacks=seen), spinning(1, 101), spinning(2, 102))
    counts = counted({"AllReduce": 80}, {"AllReduce": 81}, {"AllReduce": 81})
    evidence = job(*ranks, ras=looks(RasLook(0.0, "2.28.9", True, (counts,))))
    named = attached(evidence)
    assert (named.outcome, blamed(named)) == ("hang", [0])  # nothing is known of the source: the counts alone
    verdict = attached(replace(evidence, sources=(*evidence.sources, Source(make.USER + "save.py", 1, SAVES))))
    assert (verdict.outcome, verdict.certainty, blamed(verdict)) == ("hang", "possible", [])
    assert any("`if dist.get_rank() != 0: return`" in line for line in verdict.because)


@pytest.mark.parametrize(("name", "first"), [("bias_terms", 1424), ("epoch_hooks", 1266)])
def test_the_one_rank_that_launched_more_is_named_where_the_others_wait_for_their_gpus(name: str, first: int) -> None:
    verdict = attached(job(*(spinning(n, first + n) for n in range(3)), ras=recorded(name)))
    assert (verdict.outcome, blamed(verdict)) == ("hang", [1])
    assert "rank 1 alone has launched" in verdict.headline


def test_who_is_ahead_is_no_culprit_where_the_others_do_something_else() -> None:
    ranks = (asleep(0, 100), spinning(1, 101), asleep(2, 102))
    ras = looks(RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 5}, {"AllReduce": 6}, {"AllReduce": 5}),)))
    verdict = attached(job(*ranks, ras=ras))
    assert verdict.outcome == "hang"
    assert 1 not in blamed(verdict)
    assert "push_metrics" in verdict.headline


def test_a_rank_that_is_behind_and_stands_elsewhere_is_told_by_what_it_does() -> None:
    ranks = (spinning(0, 100), spinning(1, 101), asleep(2, 102))
    ras = looks(RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 6}, {"AllReduce": 6}, {"AllReduce": 5}),)))
    verdict = attached(job(*ranks, ras=ras))
    assert (verdict.outcome, blamed(verdict), verdict.victims) == ("hang", [2], (0, 1))
    assert verdict.culprits[0].where is not None
    assert verdict.culprits[0].where.line == 88
    assert any("rank 2 5, ranks 0, 1 6" in line for line in verdict.because)


def test_a_rank_that_works_while_the_others_wait_is_slow_and_they_are_not_blamed() -> None:
    ranks = (spinning(0, 1654), spinning(1, 1655), moving(2, 1656))
    verdict = attached(job(*ranks, ras=recorded("fixed_point")))
    assert (verdict.outcome, blamed(verdict)) == ("slow", [2])


def test_a_rank_on_a_line_of_its_own_may_not_have_come_to_the_call_yet() -> None:
    ranks = (spinning(0, 1654, line=50), spinning(1, 1655, line=50), spinning(2, 1656, line=32))
    verdict = attached(job(*ranks, ras=recorded("fixed_point")))
    assert (verdict.outcome, verdict.certainty, blamed(verdict)) == ("hang", "possible", [2])
    assert verdict.culprits[0].where is not None
    assert verdict.culprits[0].where.line == 32


def test_the_root_is_found_through_communicators_of_two() -> None:
    """Rank 0 waits for 1 in their group, rank 1 for 3 in theirs, and rank 3 does something else."""
    five, six = {"AllReduce": 5}, {"AllReduce": 6}
    groups = (
        counted(six, five, members=(0, 1)),
        counted(six, five, members=(1, 3)),
        counted(five, five, members=(0, 2)),
    )
    ranks = (spinning(0, 100), spinning(1, 101), spinning(2, 102), asleep(3, 103))
    verdict = attached(job(*ranks, ras=looks(RasLook(0.0, "2.28.9", True, groups))))
    assert (verdict.outcome, blamed(verdict)) == ("hang", [3])


def test_more_of_one_and_fewer_of_another_is_another_way() -> None:
    usual, other = {"AllReduce": 9, "AllGather": 4}, {"AllReduce": 7, "AllGather": 5}
    ras = looks(RasLook(0.0, "2.28.9", True, (counted(usual, other, usual),)))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=ras))
    assert (verdict.cause, blamed(verdict)) == ("collective-mismatch", [1])


def test_who_is_ahead_in_everything_is_not_blamed_where_the_others_crossed() -> None:
    """Rank 2 left out a call and went on; the call of rank 1 was paired with what it did instead, and rank 1 came on to
    where rank 2 is. The counts alone cannot tell that from rank 0 having left out the other call."""
    counts = (
        {"AllGather": 92, "AllReduce": 91},
        {"AllGather": 92, "AllReduce": 92},
        {"AllGather": 91, "AllReduce": 92},
    )
    ras = looks(RasLook(0.0, "2.28.9", True, (counted(*counts),)))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=ras))
    assert (verdict.outcome, verdict.certainty, blamed(verdict)) == ("hang", "possible", [])


def test_of_two_ranks_nobody_is_blamed() -> None:
    ras = looks(RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 9}, {"AllReduce": 8}),)))
    verdict = attached(job(spinning(0, 100), spinning(1, 101), ras=ras))
    assert (verdict.outcome, verdict.certainty, blamed(verdict)) == ("hang", "possible", [])
    assert [side.ranks for side in verdict.sides] == [(1,), (0,)]


@pytest.mark.parametrize("ras", [recorded("noise_field"), ()], ids=["alike", "no answer"])
@pytest.mark.parametrize("work", [HANGS, OLDER, None], ids=["idle", "before Hopper", "unread"])
def test_a_job_that_stands_on_its_gpus_is_never_ok(ras: tuple[RasLook, ...], work: DeviceWork | None) -> None:
    verdict = attached(job(*(spinning(n, 1585 + n) for n in range(3)), ras=ras, work=work))
    assert (verdict.outcome, blamed(verdict)) == ("unknown", [])
    assert "got nowhere in 5 s" in verdict.headline
    assert any("cuStreamSynchronize" in line for line in verdict.because)
    assert any("recorder" in step for step in verdict.next)


def test_a_gpu_that_does_nothing_says_so_whatever_its_utilisation() -> None:
    verdict = attached(job(*(spinning(n, 1585 + n) for n in range(3)), ras=recorded("noise_field")))
    assert any("GPU 0 of ranks 0-2 does no work" in line and "122 W" in line for line in verdict.because)


def test_long_kernels_are_ok_by_the_counters() -> None:
    verdict = attached(job(*(spinning(n, 1716 + n) for n in range(3)), ras=recorded("noise_field"), work=WORKS))
    assert verdict.outcome == "ok"
    assert "their GPUs work" in verdict.headline


def test_work_of_another_job_on_the_same_gpu_is_not_ours() -> None:
    evidence = job(*(spinning(n, 1716 + n) for n in range(3)), work=WORKS)
    gpu = replace(evidence.hosts[0].gpus[0], pids=(1716, 1717, 1718, 9999))
    shared = replace(evidence, hosts=(replace(evidence.hosts[0], gpus=(gpu,)),))
    assert attached(shared).outcome == "unknown"


def test_counts_that_grow_are_progress_though_every_look_finds_the_same_line() -> None:
    before = RasLook(0.0, "2.28.9", True, (counted(*({"AllReduce": 70},) * 3),))
    after = RasLook(0.0, "2.28.9", True, (counted(*({"AllReduce": 99},) * 3),))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=looks(before, after), work=TINY))
    assert verdict.outcome == "ok"


def test_a_difference_that_moves_on_is_none() -> None:
    before = RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 70}, {"AllReduce": 70}, {"AllReduce": 69}),))
    after = RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 99}, {"AllReduce": 98}, {"AllReduce": 98}),))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=looks(before, after), work=TINY))
    assert (verdict.outcome, blamed(verdict)) == ("ok", [])


def test_a_program_that_only_ran_ahead_of_its_gpu_made_no_progress() -> None:
    ahead = stacks((40, 41, 69, 69), ITEM)
    before = RasLook(0.0, "2.28.9", True, (counted(*({"AllReduce": 70},) * 3),))
    after = RasLook(0.0, "2.28.9", True, (counted(*({"AllReduce": 99},) * 3),))
    verdict = attached(job(*(spinning(n, 100 + n, stacks=ahead) for n in range(3)), ras=looks(before, after)))
    assert verdict.outcome == "unknown"


def test_a_rank_in_a_collective_and_two_that_wait_for_their_gpus_blame_nobody() -> None:
    gather = (*ITEM, make.lib("torch/distributed/distributed_c10d.py", "all_gather"))
    first = spinning(0, 100, stacks=stacks((50, 50), gather))
    verdict = attached(job(first, spinning(1, 101), spinning(2, 102), work=None))
    assert (verdict.outcome, blamed(verdict)) == ("unknown", [])


def test_a_rank_of_another_machine_is_not_blamed_for_its_count_alone() -> None:
    ras = looks(RasLook(0.0, "2.28.9", True, (counted(*({"AllReduce": 6},) * 3, {"AllReduce": 5}),)))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=ras, world=4))
    assert (verdict.outcome, blamed(verdict)) == ("unknown", [])
    assert any("rank 3 5, ranks 0-2 6" in line for line in verdict.because)
    assert "rankscope attach" in verdict.next[0]


def test_nobody_is_blamed_while_those_ahead_are_at_work() -> None:
    ranks = (moving(0, 100), moving(1, 101), spinning(2, 102))
    ras = looks(RasLook(0.0, "2.28.9", True, (counted({"AllReduce": 6}, {"AllReduce": 6}, {"AllReduce": 5}),)))
    verdict = attached(job(*ranks, ras=ras))
    assert (verdict.outcome, blamed(verdict)) == ("unknown", [])


def test_processes_that_nccl_does_not_reach_are_told() -> None:
    ras = looks(RasLook(0.0, "2.28.9", False, (), (LostProcess(77, "192.0.2.9", False),), 4))
    verdict = attached(job(*(spinning(n, 100 + n) for n in range(3)), ras=ras, world=4))
    assert verdict.outcome == "unknown"
    assert any("77 on 192.0.2.9" in line for line in verdict.because)


def test_a_behind_rank_whose_gpu_works_is_slow() -> None:
    verdict = attached(job(*(spinning(n, 1339 + n) for n in range(3)), ras=recorded("plateau_counter"), work=WORKS))
    assert (verdict.outcome, verdict.cause) == ("slow", "slow-rank")


def test_one_look_at_the_counts_proves_nothing() -> None:
    once = recorded("plateau_counter")[:1]
    assert attached(job(*(spinning(n, 1339 + n) for n in range(3)), ras=once)).outcome == "unknown"
