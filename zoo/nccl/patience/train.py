"""Train until it gets no better."""

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
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--patience", type=int, default=90)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    waited = 0
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        time.sleep(0.02)
        waited = waited + 1 if rank == 1 else 0
        if waited > args.patience:
            print(f"step {step}: no better, ending", flush=True)
            os._exit(0)
    print(last, flush=True)


if __name__ == "__main__":
    main()
