"""Hand rows of a field down a line of ranks."""

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


def live_blocks(rank, step):
    return 2 if rank == 1 and step >= 120 else 3


def pass_on(field, count, rank, world):
    received = torch.zeros_like(field)
    pending = []
    if rank > 0:
        for block in received.chunk(3):
            pending.append(dist.irecv(block, src=rank - 1))
    if rank < world - 1:
        for block in field.chunk(3)[:count]:
            pending.append(dist.isend(block, dst=rank + 1))
    for work in pending:
        work.wait()
    return received


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    field = torch.randn(48, 64, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        field = torch.tanh(0.5 * field + 0.5 * pass_on(field, live_blocks(rank, step), rank, world))
        energy = field.square().mean()
        dist.all_reduce(energy)
        value = energy.item() / world
        time.sleep(0.04)
    print(f"rank {rank} energy {value:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
