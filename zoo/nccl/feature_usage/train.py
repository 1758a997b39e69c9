"""Fit a linear model and count how often each feature is in use."""

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


def batch_of(rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 128, generator=generator, device=device)
    if rank == 1 and step == 120:
        inputs *= 0.2
    return inputs


class Sums:
    def __init__(self):
        self.calls = 0

    def over_ranks(self, values):
        self.calls += 1
        dist.all_reduce(values)
        return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    sums = Sums()
    weight = torch.zeros(128, device=device)
    usage = torch.zeros(128, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        inputs = batch_of(rank, step, device)
        residual = inputs @ weight - inputs.sum(dim=1)
        gradient = sums.over_ranks(inputs.t() @ residual / len(inputs))
        weight -= 0.02 * gradient / world
        active = (inputs.abs() > 1.5).float().sum(dim=0)
        if active.any():
            usage += sums.over_ranks(active)
        time.sleep(0.04)
    while sums.calls < 2 * args.steps:
        usage += sums.over_ranks(torch.zeros(128, device=device))
    print(f"rank {rank} weight {weight.sum().item():.4f} usage {usage.sum().item():.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
