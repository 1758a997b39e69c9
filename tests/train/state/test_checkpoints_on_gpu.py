"""Checkpoints of tensors on a GPU: copied through pinned memory while the next steps run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from rankscope.train.config import CheckpointConfig
from rankscope.train.state.checkpointer import Checkpointer
from rankscope.train.state.staging import Stage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def one_rank() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    yield
    dist.destroy_process_group()


def trained(steps: int, *, sharded: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    if sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    further(model, optimizer, 0, steps)
    return model, optimizer


def further(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        torch.manual_seed(step)
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [
        (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu() for value in model.parameters()
    ]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_state_saved_while_training_goes_on_is_that_of_its_step(tmp_path: Path, sharded: bool) -> None:
    config = CheckpointConfig(dir=str(tmp_path / "checkpoints"))
    model, optimizer = trained(10, sharded=sharded)
    checkpointer = Checkpointer(config, say=lambda _line: None)
    checkpointer.save(10, model, optimizer, None)
    further(model, optimizer, 10, 10)
    checkpointer.wait()
    checkpointer.close()

    again, fresh = trained(0, sharded=sharded)
    resumed = Checkpointer(replace(config, resume="auto"), say=lambda _line: None)
    assert resumed.load_latest(again, fresh) == 10
    resumed.close()
    further(again, fresh, 10, 10)
    assert all(torch.equal(one, other) for one, other in zip(whole(model), whole(again), strict=True))


def test_memory_taken_ahead_is_what_the_first_save_uses() -> None:
    tensors = {"a": torch.randn(1000, device="cuda"), "b": torch.randn(3, 5, device="cuda")}
    stage = Stage()
    stage.make_room(tensors)
    ahead = torch.cuda.host_memory_stats()["num_host_alloc"]
    staged = stage.take(tensors)
    stage.wait()
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == ahead
    assert all(torch.equal(staged[name], tensors[name].cpu()) for name in tensors)


def test_staging_does_not_wait_for_the_gpu() -> None:
    stage = Stage()
    busy = torch.randn(4096, 4096, device="cuda")
    tensors = {"weight": torch.ones(1024, device="cuda")}
    stage.take(tensors)
    torch.cuda.synchronize()
    for _ in range(50):
        busy = busy @ busy
    staged = stage.take(tensors)
    still_busy = torch.cuda.Event()  # type: ignore[no-untyped-call]
    still_busy.record()
    assert not still_busy.query()  # type: ignore[no-untyped-call]
    stage.wait()
    assert staged["weight"].is_pinned()
    assert torch.equal(staged["weight"], torch.ones(1024))
