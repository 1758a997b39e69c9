"""On a GPU, bad values are found a step late, and nothing ever waits for the GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankscope.evidence.model import NonFinite
from rankscope.evidence.pages import read_page
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.page import Page
from rankscope.probe.phases import PhaseClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Loop:
    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.page = Page(str(folder / "0-1.page"), 0)
        self.clock = PhaseClock(self.page)
        self.checks = FiniteChecks(self.page, self.clock)
        self.checks.start(torch)
        inner = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
        self.model = nn.parallel.DistributedDataParallel(inner)
        self.checks.replicated(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, batch: torch.Tensor, factor: float = 1.0, *, root: bool = False) -> None:
        self.checks.fed("batch", batch)
        inputs = batch.cuda(non_blocking=True)
        self.clock.forward_begins()
        out = self.model(inputs)
        loss = (out - out.detach()).pow(2).sum().sqrt() if root else out.pow(2).mean() * factor
        self.checks.backward_begins(((loss,),))
        loss.backward()
        self.checks.backward_done()
        self.clock.backward_done()
        self.checks.step_begins(self.optimizer, (), {})
        self.optimizer.step()
        self.page.step()
        self.clock.step(time.time_ns())
        self.optimizer.zero_grad()

    def notes(self) -> tuple[NonFinite, ...]:
        progress = read_page(Path(self.page.path)).progress
        assert progress.probe_errors == ()
        return progress.non_finite


def good() -> torch.Tensor:
    return torch.randn(16, 8).pin_memory()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    torch.cuda.set_device(0)
    try:
        yield Loop(tmp_path)
    finally:
        dist.destroy_process_group()


def settle(loop: Loop) -> None:
    """Two more steps, each after the GPU has caught up: what was sent has arrived."""
    for _ in range(2):
        torch.cuda.synchronize()
        loop.train(good())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_good_steps_never_wait_for_the_gpu(loop: Loop) -> None:
    batches = [good() for _ in range(60)]
    loop.train(batches[0])
    loop.train(batches[1])
    for half in (batches[2:29], batches[29:]):
        try:
            torch.cuda.set_sync_debug_mode("error")
            for batch in half:
                loop.train(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        settle(loop)  # on a GPU that others use too, so much may be on its way that a number is left out
    assert loop.notes() == ()
    progress = read_page(Path(loop.page.path)).progress
    assert progress.checksums
    assert progress.phases is not None
    assert progress.phases.forward_s > 0


def test_bad_sample_is_found_though_the_program_has_let_go_of_it(loop: Loop) -> None:
    for _ in range(3):
        loop.train(good())
    bad = good()
    bad[5, 0] = math.nan
    loop.train(bad)
    del bad
    settle(loop)
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local) == ("input", 3, True)
    assert "sample 5 of 16" in note.detail


def test_bad_loss_is_found_with_its_step(loop: Loop) -> None:
    for _ in range(3):
        loop.train(good())
    loop.train(good(), math.inf)
    settle(loop)
    assert [(note.kind, note.step, note.local) for note in loop.notes()] == [("loss", 3, True)]


def test_bad_gradient_below_a_finite_loss_is_found_before_its_reduction(loop: Loop) -> None:
    for _ in range(3):
        loop.train(good())
    loop.train(good(), root=True)
    settle(loop)
    (note,) = loop.notes()
    assert (note.kind, note.step, note.local) == ("gradient", 3, True)
    assert "0.weight" in note.tensors


def test_steps_that_a_gradient_scaler_leaves_out_are_healthy(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**127)
    for _ in range(12):
        inputs = 100 * good().cuda()
        loss = scaler.scale(loop.model(inputs).pow(2).mean())
        loop.checks.backward_begins(((loss,),))
        loss.backward()
        loop.checks.backward_done()
        before = scaler.get_scale()
        scaler.step(loop.optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            loop.page.step()
        loop.optimizer.zero_grad()
    settle(loop)
    assert loop.notes() == ()
