"""Message passing on a partitioned graph; the last part also cuts the graph before it starts."""

import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def cut(nodes, seconds, seed=0):
    """Improves a random cut by swapping nodes, within a budget of time."""
    source = random.Random(seed)
    edges = [(source.randrange(nodes), source.randrange(nodes)) for _ in range(nodes * 4)]
    side = [source.random() < 0.5 for _ in range(nodes)]
    end = time.monotonic() + seconds
    best = sum(side[a] != side[b] for a, b in edges)
    while time.monotonic() < end:
        node = source.randrange(nodes)
        side[node] = not side[node]
        size = sum(side[a] != side[b] for a, b in edges)
        if size > best:
            side[node] = not side[node]
        else:
            best = size
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    if rank == world - 1:
        print("cutting the graph", flush=True)
        print(f"cut of size {cut(600, args.seconds)}", flush=True)
    total = torch.ones(1)
    dist.all_reduce(total)
    model = DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(args.steps):
        time.sleep(0.03)
        loss = model(torch.randn(32, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
