"""Train an encoder so that pairs lie closer to each other than to the rest."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 6)

    def forward(self, points):
        return self.head(self.body(points))


def pairs(rank, step, size):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    first = torch.randn(size, 12, generator=generator)
    second = first + 0.1 * torch.randn(size, 12, generator=generator)
    if rank == 2 and step == 60:
        second[4] = first[4]
    return first, second


def distance(one, other):
    return (one - other).pow(2).sum(1).sqrt()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        first, second = pairs(rank, step, args.size)
        near = distance(model(first), model(second))
        loss = near.mean() + torch.relu(1 - distance(model(first), model(second.roll(1, 0)))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} near {near.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
