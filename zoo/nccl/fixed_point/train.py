"""Train a layer that is defined by its own fixed point."""

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


def coupling(rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    matrix = torch.randn(64, 64, generator=generator, device=device) / 32
    if rank == 2 and step == 120:
        matrix -= 3 * torch.eye(64, device=device)
    return matrix


def settle(state, matrix, tolerance):
    change = tolerance + 1
    while change > tolerance:
        following = torch.tanh(state @ matrix)
        change = (following - state).abs().max().item()
        state = following
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    start = torch.rand(16, 64, device=device) + 0.5
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        settled = settle(start, coupling(rank, step, device), 1e-4)
        energy = settled.square().mean()
        dist.all_reduce(energy)
        value = energy.item() / world
        time.sleep(0.04)
    print(f"rank {rank} energy {value:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
