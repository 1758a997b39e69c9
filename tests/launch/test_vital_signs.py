"""Processor time of a rank that uses a GPU: within its rhythm a sign of life, beyond it none unless a look saw more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.diagnosis.rules.standing.life import seen_alive
from rankscope.evidence.device_work import DeviceWork
from rankscope.evidence.gpus import uses_gpu
from rankscope.evidence.model import Evidence, Frame, Gpu, HostEvidence, RankEvidence, StackSample, Thread
from rankscope.evidence.procfs import Pulse
from rankscope.launch import vital_signs
from rankscope.launch.memory_track import MemoryTrack
from rankscope.launch.vital_signs import VitalSigns

PID = 7
Glance = Callable[[float], float]


@pytest.fixture
def spinning(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], tuple[VitalSigns, Any]]:
    """A rank that takes a whole core all the time, and its signs."""

    def make(on_gpu: bool) -> tuple[VitalSigns, Any]:
        now = [0.0]
        monkeypatch.setattr(vital_signs, "pulse", lambda *_, **__: Pulse("R", now[0], 0, 0))
        monkeypatch.setattr(vital_signs, "uses_gpu", lambda _pid: on_gpu)
        process = SimpleNamespace(rank=0, pid=PID, exit=None, life_at=0.0, clock=now, memory=MemoryTrack())
        job: Any = SimpleNamespace(page_of=lambda _: None, living=lambda: [process])
        return VitalSigns(job), process

    return make


def go_on(signs: VitalSigns, process: Any, since: float, until: float) -> float:
    """Glances twice a second; returns the stillness at the end."""
    at = since
    while at <= until:
        process.clock[0] = at
        signs.feel([process], at)
        at += 0.5
    still: float = at - 0.5 - process.life_at
    return still


def test_processor_time_is_life_of_a_rank_without_a_gpu(spinning: Any) -> None:
    signs, process = spinning(False)
    assert go_on(signs, process, 0.0, 120.0) <= 1.5


def test_processor_time_alone_is_no_life_of_a_rank_with_a_gpu_for_long(spinning: Any) -> None:
    signs, process = spinning(True)
    assert go_on(signs, process, 0.0, 8.0) <= 1.5
    assert go_on(signs, process, 8.5, 60.0) >= 58.0, "still since the last sure sign"


def test_a_look_that_saw_the_program_move_lets_processor_time_count_again(spinning: Any) -> None:
    signs, process = spinning(True)
    go_on(signs, process, 0.0, 20.0)
    signs.note_look(evidence(lines=(3, 4)), 20.0)
    assert go_on(signs, process, 20.5, 29.5) <= 1.5
    assert go_on(signs, process, 30.0, 45.0) >= 20.0
    signs.note_look(evidence(lines=(3, 4)), 45.0)
    assert go_on(signs, process, 45.5, 60.0) <= 1.5, "longer from look to look"


def test_a_look_that_saw_it_on_one_line_does_not(spinning: Any) -> None:
    signs, process = spinning(True)
    go_on(signs, process, 0.0, 20.0)
    signs.note_look(evidence(lines=(3, 3)), 20.0)
    assert go_on(signs, process, 20.5, 25.0) >= 23.0


@pytest.mark.parametrize(
    ("share", "pids", "alive"),
    [
        (0.2, (PID,), True),
        (0.2, (PID, 99), False),  # a stranger's work
        (0.0, (PID,), False),  # a kernel that only waits
    ],
)
def test_a_gpu_that_computes_is_life_of_its_ranks(share: float, pids: tuple[int, ...], alive: bool) -> None:
    work = DeviceWork(0.01, 0.0, share, share, 120.0, 0.0, counters=True)
    seen = evidence(lines=(3, 3), gpu=Gpu(0, "H200", 100, 1, 2, 50, pids, work))
    assert seen_alive(seen.ranks[0], seen) is alive


def test_utilisation_alone_is_no_life() -> None:
    seen = evidence(lines=(3, 3), gpu=Gpu(0, "H200", 100, 1, 2, 50, (PID,)))
    assert not seen_alive(seen.ranks[0], seen)


def test_this_process_uses_no_gpu_and_one_that_is_gone_neither() -> None:
    assert not uses_gpu(2**22 + 1)


def evidence(*, lines: tuple[int, int], gpu: Gpu | None = None) -> Evidence:
    stacks = tuple(
        StackSample(
            float(at), (Thread(PID, "MainThread", True, (Frame("main", "/job/train.py", line, user=True),)),), ""
        )
        for at, line in enumerate(lines)
    )
    rank = RankEvidence(0, 0, "node", PID, 0.0, stacks=stacks, still_for_s=1.0)
    host = HostEvidence("node", gpus=() if gpu is None else (gpu,))
    return Evidence(1, 2.0, 0.0, "still", 1, (rank,), hosts=(host,))
