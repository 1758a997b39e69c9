"""Train and add up the losses of the batches that count."""

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
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator, device=device)
    return inputs, (inputs.sum(dim=1) > 0).long()


def record_lengths(rank, steps):
    lengths = [40 + (7 * step + rank) % 23 for step in range(steps)]
    if rank == 2:
        lengths[steps - 10 :] = [0] * 10
    return lengths


def tally(loss, total, group):
    value = loss.detach().clone()
    dist.all_reduce(value, group=group)
    total += value
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reports = dist.new_group(list(range(world)))
    lengths = record_lengths(rank, args.steps)
    total = torch.zeros((), device=device)
    batches = 0
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        batches += lengths[step] > 0 and tally(loss, total, reports)
        time.sleep(0.03)
    mean = total.item() / world / batches
    print(f"rank {rank} mean loss {mean:.4f} of {batches}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
