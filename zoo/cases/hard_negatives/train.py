"""Contrastive training; between two epochs rank 0 looks for harder negatives."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def distance(left, right):
    return sum((a - b) ** 2 for a, b in zip(left, right, strict=True))


def mine_negatives(items, seconds):
    """The nearest other item of as many items as the time allows."""
    end = time.monotonic() + seconds
    nearest = {}
    for index, item in enumerate(items):
        if time.monotonic() > end:
            break
        others = (other for other in range(len(items)) if other != index)
        nearest[index] = min(others, key=lambda other: distance(item, items[other]))
    return nearest


def train_epoch(model, optimizer, items, epoch, rank, steps=30):
    for step in range(steps):
        time.sleep(0.05)
        batch = items[torch.randint(0, len(items), (32,))]
        loss = (model(batch) - batch.flip(0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mining-seconds", type=float, default=12.0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    items = torch.randn(20_000, 16, generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(args.epochs):
        train_epoch(model, optimizer, items, epoch, rank)
        if rank == 0 and epoch + 1 < args.epochs:
            print("mining negatives", flush=True)
            found = mine_negatives(items.tolist(), args.mining_seconds)
            print(f"found {len(found)} negatives", flush=True)
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
