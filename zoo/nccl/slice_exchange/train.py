"""Exchange equal slices of a long table between the ranks."""

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


def slices(rank, step, rows):
    sizes = [rows] * 3
    if rank == 1 and step >= 120:
        sizes[0] -= 4
        sizes[2] += 4
    return sizes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=6132)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    table = torch.rand(world * args.rows, 64, device=device)
    arrived = torch.empty_like(table)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        sizes = slices(rank, step, args.rows)
        dist.all_to_all_single(arrived, table, output_split_sizes=[args.rows] * world, input_split_sizes=sizes)
        table, arrived = arrived * 0.999, table
        total = table.sum(dtype=torch.float64)
        dist.all_reduce(total)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} total {total.item():.3f}", flush=True)
        time.sleep(0.03)
    print(f"rank {rank} total {total.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
