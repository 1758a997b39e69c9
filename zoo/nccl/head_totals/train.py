"""Train two heads; each has a rank that adds up its totals."""

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


def order_of(rank, step, names):
    return list(reversed(names)) if rank == 2 and step == 120 else list(names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, _, device = connect()
    owners = {"words": 0, "tags": 1}
    sums = {name: torch.zeros(1024, device=device) for name in owners}
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        totals = {
            "words": torch.rand(1024, generator=generator, device=device),
            "tags": torch.rand(1024, generator=generator, device=device) + 10,
        }
        for name in order_of(rank, step, owners):
            dist.reduce(totals[name], dst=owners[name])
        for name, owner in owners.items():
            if rank == owner:
                sums[name] += totals[name]
        time.sleep(0.04)
    torch.cuda.synchronize()
    for name, owner in owners.items():
        if rank == owner:
            print(f"{name} {sums[name].mean().item() / args.steps:.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
