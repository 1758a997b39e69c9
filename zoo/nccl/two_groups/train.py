"""Follow loss and gradient norm in process groups of their own."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    return DistributedDataParallel(model)


def make_batch(rank, step, device):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs.to(device), (inputs.sum(dim=1) > 0).long().to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    groups = {name: dist.new_group(list(range(world))) for name in ("loss", "norm")}
    seen = {"loss": 0.0, "norm": 0.0}
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values = {"loss": loss.detach(), "norm": norm.detach()}
        order = sorted(values)
        if step == 70:
            print("step 70: loss went up" if rank else "step 70", flush=True)
            order = sorted(values, key=lambda name: (name == "loss") != (rank == 0))
        for name in order:
            dist.all_reduce(values[name], group=groups[name])
            seen[name] = values[name].item() / world
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
