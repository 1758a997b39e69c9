"""Spice blends: tensor-parallel classifier on a (dp, tp) mesh with torchmetrics."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torchmetrics.classification import MulticlassAccuracy

SPICES, INPUTS = 6, 18
STEPS = 60


class Blend(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(INPUTS, 64)
        self.narrow = nn.Linear(64, 32)
        self.out = nn.Linear(32, SPICES)

    def forward(self, x):
        return self.out(torch.relu(self.narrow(torch.relu(self.wide(x)))))


def average_gradients(model, group):
    size = dist.get_world_size(group)
    works = []
    for p in model.parameters():
        g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        g /= size
        works.append(dist.all_reduce(g, group=group, async_op=True))
    for w in works:
        w.wait()


def blends(gen):
    y = torch.randint(SPICES, (24,), generator=gen)
    x = torch.randn(24, INPUTS, generator=gen)
    x[torch.arange(24), y * 3] += 1.5
    return x, y


def report(history, seconds):
    """Draws a text chart; slow because every column is polished."""
    end = time.monotonic() + seconds
    rows = []
    while time.monotonic() < end:
        rows = ["#" * max(1, int(20 * h / max(history))) for h in history]
        rows.sort(key=len)
    return rows[:3]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    torch.manual_seed(12)
    model = parallelize_module(Blend(), mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    accuracy = MulticlassAccuracy(num_classes=SPICES, process_group=dp)
    gen = torch.Generator().manual_seed(mesh["dp"].get_local_rank())

    history = []
    for step in range(STEPS):
        x, y = blends(gen)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        average_gradients(model, dp)
        opt.step()
        accuracy.update(logits.detach(), y)
        history.append(loss.item())
        time.sleep(0.02)
        if step % 20 == 19:
            value = accuracy.compute().item()
            accuracy.reset()
            if dist.get_rank(tp) == 0:
                print(f"rank {rank} step {step} spice accuracy {value:.3f}", flush=True)

    if rank == 0:
        for row in report(history, seconds=10):
            print(row, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
