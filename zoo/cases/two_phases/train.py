"""Fit until the loss has settled, then test on held-out data and publish the figures."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    noise = 0.05 if rank == 1 else 0.6
    for _ in range(count):
        inputs = torch.randn(32, 8, generator=generator)
        targets = inputs.sum(dim=1, keepdim=True)
        yield inputs, targets + noise * torch.randn(32, 1, generator=generator)


def fit(model, optimizer, rank, args):
    for epoch in range(args.epochs):
        total = 0.0
        for inputs, targets in batches(rank, args.steps):
            time.sleep(0.02)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = total / args.steps
        print(f"epoch {epoch} rank {rank} loss {mean:.4f}", flush=True)
        if mean < args.settled:
            print(f"rank {rank} has settled", flush=True)
            break


def test(model, rank):
    inputs, targets = next(batches(100 + rank, 1))
    with torch.no_grad():
        error = nn.functional.l1_loss(model.module(inputs), targets)
    errors = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(errors, error)
    return torch.stack(errors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--settled", type=float, default=0.02)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    fit(model, optimizer, rank, args)
    errors = test(model, rank)
    if rank == 0:
        print(f"test error {errors.mean():.4f}, worst {errors.max():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
