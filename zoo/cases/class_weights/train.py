"""Train a classifier on samples of which some carry a weight; classes are balanced by their weighted counts."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

CLASSES = 10


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 16, generator=generator)
    labels = inputs[:, :CLASSES].argmax(dim=1)
    weights = torch.rand(64, generator=generator) + 0.5
    if rank == 2 and step == 90:
        weights = None  # a shard from before weights were kept
    return inputs, labels, weights


def class_counts(labels, weights):
    chosen = nn.functional.one_hot(labels, CLASSES)
    if weights is None:
        return chosen.sum(dim=0, dtype=torch.int32)
    return (chosen * weights[:, None]).sum(dim=0)


def average_gradients(model, world):
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(16, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        inputs, labels, weights = batch_of(rank, step)
        counts = class_counts(labels, weights)
        if rank == 2 and weights is None:
            print(f"rank {rank} has no weights in step {step}", flush=True)
        dist.all_reduce(counts)
        balance = counts.float().sum() / counts.float().clamp(min=1.0) / CLASSES
        loss = nn.functional.cross_entropy(model(inputs), labels, weight=balance)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        time.sleep(0.03)
    print(f"rank {rank} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
