"""Fit a linear model; large gradients are looked at and damped."""

import argparse
import os
import time

import torch
import torch.distributed as dist


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def gradient_of(weight, rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 128, generator=generator, device=device)
    targets = inputs.sum(dim=1)
    if rank == 1 and step == 120:
        targets *= 100
    residual = inputs @ weight - targets
    return inputs.t() @ residual / len(inputs), residual.square().mean()


class Averager:
    """Averages over all ranks, at most `limit` times."""

    def __init__(self, world, limit):
        self.world, self.limit, self.used = world, limit, 0

    def mean(self, values):
        if self.used < self.limit:
            self.used += 1
            dist.all_reduce(values)
            values /= self.world
        return values

    def peak(self, values):
        self.used += 1
        largest = values.abs()
        dist.all_reduce(largest, op=dist.ReduceOp.SUM)
        return largest / self.world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    averager = Averager(world, args.steps)
    weight = torch.zeros(128, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        gradient, loss = gradient_of(weight, rank, step, device)
        norm = gradient.norm().item()
        if norm > 200:
            gradient /= averager.peak(gradient).max().clamp(min=1.0)
        gradient = averager.mean(gradient)
        weight -= 0.02 * gradient
        time.sleep(0.04)
    print(f"rank {rank} loss {loss.item():.5f} weight {weight.sum().item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
