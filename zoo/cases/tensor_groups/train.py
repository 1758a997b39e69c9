"""Four ranks as two pairs: tensors are split within a pair, gradients averaged over all."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


def pair_of(rank, size):
    first = rank // size * size
    return list(range(first, first + size))


def calibrate(rank, rounds):
    scale = torch.ones(1)
    for _ in range(rounds):
        time.sleep(0.05)
        scale = torch.full((1,), 1.0 + rank)
        dist.all_reduce(scale)
    return scale.item() / dist.get_world_size()


def train(pair, rank, steps):
    torch.manual_seed(rank)
    weight = nn.Parameter(torch.randn(8, 4))
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(6, 8)
        partial = inputs @ weight
        summed = partial.detach().clone()
        dist.all_reduce(summed, group=pair)
        loss = (summed - partial.detach() + partial).square().mean()
        loss.backward()
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pair-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scale = calibrate(rank, rounds=30)
    print(f"rank {rank} calibrated: {scale:.2f}", flush=True)
    pair = dist.new_group(pair_of(rank, args.pair_size))
    loss = train(pair, rank, args.steps)
    print(f"rank {rank} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
