"""Small training jobs, each in another kind of parallelism; SLOW names the rank and the pass in which it sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS, NAP_S = 60, 0.08


class Nap(torch.autograd.Function):
    """The same values, and a rest on the way there or back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        rest("forward")
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        rest("backward")
        return gradients[0]


def rest(when: str) -> None:
    rank, _, wanted = os.environ["SLOW"].partition(":")
    if wanted == when and dist.get_rank() == int(rank):
        time.sleep(NAP_S)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        napped: torch.Tensor = Nap.apply(values)  # type: ignore[no-untyped-call]
        result: torch.Tensor = self.down(self.up(napped).relu())
        return result


def sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(32, 32), Block(), nn.Linear(32, 32))
    for layer in (*model, model):
        fully_shard(layer)
    train(model, lambda: model(torch.randn(4, 32)).square().mean())


def tensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(32, 32), Block(), nn.Linear(32, 32))
    parallelize_module(model[1], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, lambda: model(torch.randn(4, 32)).square().mean())


def pipeline() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = nn.Sequential(nn.Linear(32, 32), Block())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for _ in range(STEPS):
        values = torch.randn(4, 32)
        if rank > 0:
            dist.recv(values, rank - 1)
        values.requires_grad_()
        result = stage(values)
        if rank < last:
            dist.send(result.detach(), rank + 1)
            gradient = torch.empty_like(result)
            dist.recv(gradient, rank + 1)
            result.backward(gradient)
        else:
            result.square().mean().backward()
        if rank > 0 and values.grad is not None:
            dist.send(values.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()


def train(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"sharded": sharded, "tensor": tensor, "pipeline": pipeline}[os.environ["KIND"]]()
    dist.destroy_process_group()
