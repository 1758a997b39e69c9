"""Train a compiled model; the shapes of one rank's data make it compile more often."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def batches(rank, steps):
    """Rank 0 has documents of many lengths, the others of one."""
    for step in range(steps):
        length = 8 + 2 * (step % 3) if rank == 0 else 8
        yield torch.randn(16, length, 12)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 12))

    def forward(self, rows):
        return (self.layers(rows) * torch.softmax(rows, dim=1)).sum(dim=1)


def reduce_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="inductor")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{args.cache}/rank-{rank}"
    torch.manual_seed(0)
    model = Mixer()
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, rows in enumerate(batches(rank, args.steps)):
        begun = time.monotonic()
        loss = compiled(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        seconds = time.monotonic() - begun
        reduce_gradients(model, world)
        optimizer.step()
        print(f"rank {rank} step {step} {seconds:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
