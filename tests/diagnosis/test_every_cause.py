"""Every cause of the contract is reached by a rule that says what to change: from a zoo case, or evidence made here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import factories as make
import pytest
from msgspec.structs import replace

from rankscope import diagnosis
from rankscope.diagnosis.causes import CAUSES as TABLE
from rankscope.evidence.model import Collective, Evidence, Gpu, Group, HostEvidence, RankEvidence, StackSample
from rankscope.report.conclude import conclude

ZOO = Path(__file__).resolve().parents[2] / "zoo"
sys.path.insert(0, str(ZOO))

from expectation import case_names, load_case  # noqa: E402

CAUSES = frozenset(TABLE)
ELSEWHERE = {"stalled": "test_standing_still.py", "endless-loop": "test_standing_loops.py"}
"""Cause → the file of tests that makes evidence of it."""
CLOSED = "Connection closed by peer [10.0.0.3]:40112"
NCCL_LOST = "NCCL communicator was aborted on rank 1. Original reason for failure was: watchdog"


def failed(kind: str, message: str, *frames: str) -> RankEvidence:
    place = make.frame("train.py", 61, "train")
    inner = tuple(make.lib(path, name) for path, _, name in (each.partition(":") for each in frames))
    return make.rank(1, exceptions=make.raised(kind, message, *inner, place, at=make.NOW - 5), exit=make.ended(1))


def victim(number: int, message: str = CLOSED) -> RankEvidence:
    inner = make.lib("torch/distributed/distributed_c10d.py", "all_reduce")
    error = make.raised("RuntimeError", message, inner, make.frame("train.py", 70, "reduce"), at=make.NOW - 1)
    return make.rank(number, exceptions=error, exit=make.ended(1, make.NOW - 0.5))


def host(*lines: str, gpus: tuple[Gpu, ...] = (), **missing: str) -> tuple[HostEvidence, ...]:
    return (HostEvidence("node-1", gpus=gpus, kernel_log=lines, oom_kills=0, missing=missing),)


def crashed(kind: str, message: str, *frames: str, hosts: tuple[HostEvidence, ...] | None = None) -> Evidence:
    ranks = (victim(0), failed(kind, message, *frames), victim(2))
    return make.evidence(*ranks, trigger="failure", hosts=hosts or host())


def collective(seq: int, *, done: bool = True) -> Collective:
    state = "completed" if done else "scheduled"
    return Collective(seq, "default_pg", seq, 0, "all_reduce", "nccl", False, state, done, make.NOW - 20 + seq)


def waits_for_gpu(
    *, utilization: int | None = 0, cpu: float = 0.0, still: float = 60.0, log: tuple[str, ...] = (), line: str = ""
) -> Evidence:
    whole = (Group("default_pg", "", (0, 1, 2)),)
    last = make.call(3, "all_reduce", make.frame("train.py", 70, "reduce"), seq=3, step=8)
    synchronizing = [] if line else [make.lib("torch/cuda/__init__.py", "synchronize")]
    rank = make.rank(
        1,
        make.stack("train.py", 3, "train", synchronizing),
        processes=make.process("ioctl", cpu=cpu),
        still_for_s=still,
        progress=make.progress(last, steps=9, world=3, groups=whole),
        collectives=(collective(3),),
        last_enqueued={"default_pg": 3},
        last_completed={"default_pg": 3},
    )
    gpu = Gpu(3, "NVIDIA H200", utilization, 1 << 30, 1 << 37, 60, (rank.pid,))
    call = make.call(4, "all_reduce", make.frame("train.py", 70, "reduce"), seq=4, left=False, step=9)
    peers = [
        make.rank(
            number,
            make.stack("train.py", 70, "reduce", [make.lib("torch/distributed/distributed_c10d.py", "all_reduce")]),
            processes=make.process("futex"),
            still_for_s=60.0,
            progress=make.progress(last, call, steps=9, world=3, groups=whole),
            collectives=(collective(3), collective(4, done=False)),
            last_enqueued={"default_pg": 4},
            last_completed={"default_pg": 3},
        )
        for number in (0, 2)
    ]
    text = f"def train():\n    loss = step()\n    {line or 'torch.cuda.synchronize()'}\n"
    return make.evidence(peers[0], rank, peers[1], source={"train.py": text}, hosts=host(*log, gpus=(gpu,)))


XID_79 = "NVRM: Xid (PCI:0000:81:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:81:00): 31, pid=4001, name=python, Ch 00000010, intr 00000000. MMU Fault"

MADE: dict[str, tuple[Callable[[], Evidence], str]] = {
    "out of GPU memory": (
        lambda: crashed(
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.80 GiB",
        ),
        "out-of-memory-gpu",
    ),
    "two ranks on one GPU": (
        lambda: crashed(
            "torch.distributed.DistBackendError",
            "NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage, NCCL version 2.28.9\nncclInvalidUsage: This "
            "usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 "
            "and rank 0 both on CUDA device 81000",
            "torch/distributed/distributed_c10d.py:all_reduce",
        ),
        "device-mapping",
    ),
    "more ranks than GPUs": (
        lambda: crashed("RuntimeError", "CUDA error: invalid device ordinal", "torch/cuda/__init__.py:set_device"),
        "device-mapping",
    ),
    "a system error of NCCL": (
        lambda: crashed(
            "torch.distributed.DistBackendError",
            "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.28.9\nncclSystemError: "
            "System call (e.g. socket, malloc) or external library call failed or device error.",
            "torch/distributed/distributed_c10d.py:barrier",
        ),
        "comm-error",
    ),
    "an InfiniBand link": (
        lambda: crashed(
            "torch.distributed.DistBackendError",
            "NET/IB : Got completion from peer 10.0.0.7 with status=12 opcode=0 len=0 vendor err 129",
            "torch/distributed/distributed_c10d.py:all_reduce",
        ),
        "comm-error",
    ),
    "a fault that the driver reports": (
        lambda: crashed("RuntimeError", "CUDA error: unspecified launch failure", hosts=host(XID_79)),
        "comm-error",
    ),
    "shared memory of NCCL": (
        lambda: crashed(
            "torch.distributed.DistBackendError",
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Jkr2 (size 9637888)",
            "torch/distributed/distributed_c10d.py:all_reduce",
        ),
        "shm-exhausted",
    ),
    "a GPU that does nothing": (lambda: waits_for_gpu(utilization=0), "gpu-stuck"),
    "a GPU that has fallen off": (lambda: waits_for_gpu(utilization=None, still=2.0, log=(XID_79,)), "gpu-stuck"),
    "reading a value from it": (lambda: waits_for_gpu(line="print(loss.item())"), "gpu-stuck"),
    "gradients that differ": (
        lambda: crashed("FloatingPointError", "Fatal error: gradients are inconsistent between workers."),
        "parameters-diverged",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made_evidence_gets_its_cause_with_a_fix_and_blames_the_right_rank(name: str) -> None:
    made, cause = MADE[name]
    verdict = conclude(made())
    assert verdict.cause == cause
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert verdict.victims == (0, 2)
    assert verdict.fix


def test_an_error_of_another_program_on_the_gpu_is_not_the_rank_s() -> None:
    verdict = conclude(crashed("RuntimeError", "CUDA error", hosts=host(XID_31.replace("pid=4001", "pid=9999"))))
    assert not any("Xid" in line for line in verdict.because)
    verdict = conclude(crashed("RuntimeError", "CUDA error", hosts=host(XID_31)))
    assert any("Xid 31" in line for line in verdict.because)


def test_every_cause_of_the_contract_has_a_zoo_case_or_made_evidence() -> None:
    staged = {load_case(name).expect.cause for name in case_names()}
    assert {cause for _, cause in MADE.values()} <= CAUSES
    assert staged - {None} <= CAUSES
    for cause, file in ELSEWHERE.items():
        assert f'"{cause}"' in (Path(__file__).parent / file).read_text()
    assert CAUSES - staged - {cause for _, cause in MADE.values()} - set(ELSEWHERE) == set()


def test_every_cause_is_named_by_some_rule() -> None:
    rules = Path(diagnosis.__path__[0])
    text = "\n".join(path.read_text() for path in rules.rglob("*.py"))
    text = re.sub(r'f"nan-\{kind\}"', '"nan-input" "nan-loss" "nan-gradient"', text)
    assert {cause for cause in CAUSES if f'"{cause}"' not in text} == set()


def test_what_the_driver_reports_is_explained_beside_the_error() -> None:
    verdict = conclude(MADE["a fault that the driver reports"][0]())
    assert "the driver reported Xid 79 of GPU 0000:81:00: the GPU has fallen off the bus" in verdict.because
    assert "take this GPU out" in verdict.fix[0]
    program = conclude(crashed("RuntimeError", "CUDA error: an illegal memory access", hosts=host(XID_31)))
    assert "compute-sanitizer" in program.fix[0]


def test_gpu_that_works_is_no_hang() -> None:
    verdict = conclude(waits_for_gpu(utilization=97, cpu=0.5, still=0.5))
    assert (verdict.outcome, verdict.cause) == ("slow", "slow-rank")
    assert "gpu-stuck" in [each.cause for each in verdict.alternatives]


def test_printing_without_a_gpu_is_not_waiting_for_one() -> None:
    evidence = waits_for_gpu(line="print(loss.item())")
    without = make.evidence(*evidence.ranks, source={"train.py": "x\ny\nprint(loss.item())\n"}, hosts=host())
    assert conclude(without).cause != "gpu-stuck"


def test_stack_that_moves_is_not_stuck_in_a_gpu() -> None:
    evidence = waits_for_gpu()
    seen = evidence.ranks[1]
    moved = (seen.stacks[0], StackSample(make.NOW, (make.stack("train.py", 9, "train"),), "py-spy"))
    ranks = (evidence.ranks[0], replace(seen, stacks=moved))
    assert conclude(make.evidence(*ranks, evidence.ranks[2], hosts=evidence.hosts)).cause != "gpu-stuck"
