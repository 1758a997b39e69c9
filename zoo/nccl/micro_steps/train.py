"""Train on documents of varying length, four micro-batches to an update."""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO = 4
BUDGET = 160


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def read_document(rank, step, index, device):
    base = 56 if rank == 2 and step >= 120 else 24
    length = base + (7 * rank + 5 * step + 3 * index) % 9
    generator = torch.Generator().manual_seed(100_000 * rank + 10 * step + index)
    inputs = torch.randn(length, 48, generator=generator)
    return inputs.to(device), inputs.roll(1, dims=0).to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    rank, world, device = connect()
    statistics = dist.new_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        optimizer.zero_grad()
        tokens = 0
        summed = torch.zeros((), device=device)
        for index in range(MICRO):
            if tokens >= BUDGET:
                break
            inputs, targets = read_document(rank, step, index, device)
            tokens += len(inputs)
            context = contextlib.nullcontext() if index == MICRO - 1 else model.no_sync()
            with context:
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / MICRO).backward()
            summed += loss.detach() * len(inputs)
        optimizer.step()
        totals = torch.stack([summed, torch.full_like(summed, float(tokens))])
        dist.all_reduce(totals, group=statistics)
        weighted, seen = totals.tolist()
        time.sleep(0.04)
    print(f"rank {rank} loss {weighted / seen:.5f} over {world} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
