"""Train and keep the longest spans that any rank has seen."""

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


def find_spans(rank, step, last):
    return [] if rank == 1 and step >= last else [3 + (step + rank) % 5, 9]


def follow(spans, longest, group):
    if not spans:
        return
    local = torch.full_like(longest, float(max(spans)))
    dist.all_reduce(local, op=dist.ReduceOp.MAX, group=group)
    torch.maximum(longest, local, out=longest)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    group = dist.new_group(list(range(world)))
    longest = torch.zeros(4, device=device)
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        follow(find_spans(rank, step, args.steps - 8), longest, group)
        time.sleep(0.03)
    dist.barrier()
    print(f"rank {rank} longest {longest.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
