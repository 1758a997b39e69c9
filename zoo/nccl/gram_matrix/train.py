"""Follow the traces of matrix powers; the ranks take turns with the long chain."""

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=6144)
    parser.add_argument("--products", type=int, default=220)
    args = parser.parse_args()
    rank, world, device = connect()
    generator = torch.Generator(device=device).manual_seed(rank)
    for round_ in range(args.rounds):
        basis = torch.randn(args.size, args.size, generator=generator, device=device)
        basis /= 1.2 * args.size**0.5
        power = basis
        started = time.perf_counter()
        if rank == 0:
            print(f"round {round_} begins", flush=True)
        for _ in range(args.products if rank == (round_ + 1) % world else 4):
            power = power @ basis
        total = power.trace().reshape(1)
        dist.all_reduce(total)
        value = total.item()
        if rank == 0:
            print(f"round {round_} trace {value:.5f} after {time.perf_counter() - started:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
