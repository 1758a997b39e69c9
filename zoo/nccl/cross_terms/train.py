"""Least squares over blocks of rows that each rank reads from its own files."""

import argparse
import os
import time

import torch
import torch.distributed as dist

WIDTH, OUTPUTS = 48, 24
ROWS = 256


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def read_block(rank, number, truth, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + number)
    # The last block of a file is as long as the file happens to be.
    rows = 20 if rank == 1 and number == 90 else ROWS
    inputs = torch.randn(rows, WIDTH, generator=generator, device=device)
    noise = torch.randn(rows, OUTPUTS, generator=generator, device=device)
    return inputs, inputs @ truth + 0.01 * noise


def products(inputs, targets):
    if len(inputs) < WIDTH:
        # Few rows: the narrow side first.
        return targets.t() @ inputs
    return inputs.t() @ targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=180)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(0)
    truth = torch.randn(WIDTH, OUTPUTS, device=device)
    gram_sum = torch.zeros(WIDTH, WIDTH, device=device)
    cross_sum = torch.zeros(WIDTH * OUTPUTS, device=device)
    for number in range(args.blocks):
        if rank == 0 and number % 30 == 0:
            print(f"block {number} begins", flush=True)
        inputs, targets = read_block(rank, number, truth, device)
        gram = inputs.t() @ inputs
        cross = products(inputs, targets)
        dist.all_reduce(gram)
        dist.all_reduce(cross)
        gram_sum += gram
        cross_sum += cross.flatten()
        time.sleep(0.04)
        if rank == 0 and number % 30 == 29:
            print(f"block {number} mean square {gram_sum.diagonal().mean().item():.1f}", flush=True)
    found = torch.linalg.solve(gram_sum, cross_sum.view(WIDTH, OUTPUTS))
    print(f"rank {rank} norm {found.norm().item():.6f} error {(found - truth).abs().max().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
