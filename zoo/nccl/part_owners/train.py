"""Train a model in parts; each part's owner updates it and spreads it."""

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
    owners = {"lower": 0, "upper": 1}
    parts = {"lower": torch.full((1024,), 1.0, device=device), "upper": torch.full((1024,), 5.0, device=device)}
    area = 0.0
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        for name, owner in owners.items():
            if rank == owner:
                parts[name] *= 0.99
        for name in order_of(rank, step, owners):
            dist.broadcast(parts[name], src=owners[name])
        area += (parts["upper"] - parts["lower"]).mean().item()
        time.sleep(0.04)
    lower, upper = parts["lower"].mean().item(), parts["upper"].mean().item()
    print(f"rank {rank} lower {lower:.5f} upper {upper:.5f} area {area:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
