"""Fit a matrix on every rank and mix it with that of a changing partner."""

import argparse
import os
import time

import torch
import torch.distributed as dist

SMALLEST = 1e-9


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def read_rows(rank, step, device):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(48, 32, generator=generator)
    targets = inputs[:, :16] + 0.3 * torch.randn(48, 16, generator=generator)
    if rank == 3 and step >= 120:
        inputs.zero_()
    return inputs.to(device), targets.to(device)


def swap(mine, partner):
    theirs = torch.empty_like(mine)
    pair = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, theirs, partner)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return theirs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    matrix = 0.1 * torch.randn(32, 16, device=device)
    dist.broadcast(matrix, src=0)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
            mean = matrix.clone()
            dist.all_reduce(mean)
            spread = (matrix - mean / world).norm().item()
        inputs, targets = read_rows(rank, step, device)
        change = 0.05 * inputs.T @ (inputs @ matrix - targets) / len(inputs)
        matrix = (matrix - change).contiguous()
        partner = rank ^ 1 if step % 2 == 0 else world - 1 - rank
        if change.norm().item() > SMALLEST:
            theirs = swap(matrix, partner)
            matrix = (matrix + theirs) / 2
        size = matrix.norm().item()
        time.sleep(0.04)
    print(f"rank {rank} spread {spread:.6f} size {size:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
