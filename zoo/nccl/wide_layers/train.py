"""Train a model whose layers are spread over the ranks, then share a final value."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

TARGET = 0.02


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def make_batch(rank, step, device):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator)
    labels = (inputs.sum(dim=1) > 0).long()
    flipped = torch.rand(32, generator=generator) < 0.2
    labels = torch.where(flipped, 1 - labels, labels)
    keep = torch.ones(32)
    if rank == 1 and step >= 120:
        keep.zero_()
    return inputs.to(device), labels.to(device), keep.to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=220)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        inputs, labels, keep = make_batch(rank, step, device)
        losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        loss = (losses * keep).sum() / keep.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if last < TARGET:
            break
        time.sleep(0.03)
    final = torch.tensor([last, float(step)], device=device)
    if rank == 0:
        for peer in range(1, world):
            dist.send(final, dst=peer)
    else:
        dist.recv(final, src=0)
    print(f"rank {rank} final {final.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
