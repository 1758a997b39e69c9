"""Prepare on rank 0, then train on all."""

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


def prepare(rank, seconds):
    if rank != 0:
        return
    counts = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for word in ("a", "bb", "ccc", "dddd"):
            counts[word] = counts.get(word, 0) + len(word)
    print(f"prepared {len(counts)} words", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=14.0)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prepare(rank, args.seconds)
    dist.barrier()
    for step in range(60):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    print(f"rank {rank}: {last:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
