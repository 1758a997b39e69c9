"""Two ranks train a model whose tensors are split between them; the others of the job evaluate its snapshots."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


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
    for _ in range(steps):
        time.sleep(0.05)
        partial = torch.randn(6, 8) @ weight
        summed = partial.detach().clone()
        dist.all_reduce(summed, group=pair)
        loss = (summed - partial.detach() + partial).square().mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None
    return weight.detach()


def evaluate(weight):
    return weight.square().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = list(range(args.trainers))
    scale = calibrate(rank, rounds=35)
    print(f"rank {rank} calibrated: {scale:.2f}", flush=True)

    weight = torch.zeros(8, 4)
    if rank in trainers:
        pair = dist.new_group(trainers)
        weight = train(pair, rank, args.steps)
    dist.broadcast(weight, src=0)
    if rank not in trainers:
        print(f"rank {rank} evaluated {evaluate(weight):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
