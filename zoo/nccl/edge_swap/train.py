"""Exchange the edges of a field with both neighbours."""

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


def swap(field, left, right):
    from_left, from_right = torch.empty_like(field[0]), torch.empty_like(field[0])
    operations = [
        dist.P2POp(dist.isend, field[-1].contiguous(), right),
        dist.P2POp(dist.irecv, from_left, left),
        dist.P2POp(dist.isend, field[0].contiguous(), left),
        dist.P2POp(dist.irecv, from_right, right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return from_left, from_right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    field = torch.randn(32, 64, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        stride = 2 if rank == 2 and step >= 120 else 1
        upper, lower = swap(field, (rank - 1) % world, (rank + stride) % world)
        field[0] = 0.5 * (field[0] + upper)
        field[-1] = 0.5 * (field[-1] + lower)
        field = torch.tanh(field)
        energy = field.square().mean()
        dist.all_reduce(energy)
        value = energy.item() / world
        time.sleep(0.04)
    print(f"rank {rank} energy {value:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
