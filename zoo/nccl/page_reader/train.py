"""Train on the pages of a rank's own shard."""

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


def pages(rank, device):
    for page in range(150 - 17 * (rank == 2)):
        if page % 19 == 0:
            print(f"rank {rank} at page {page}", flush=True)
        yield make_batch(rank, page, device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    rank, world, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scores = torch.zeros(world, 2, device=device)
    for epoch in range(args.epochs):
        seen = 0
        for inputs, labels in pages(rank, device):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item()
            seen += len(labels)
            time.sleep(0.04)
        print(f"rank {rank} epoch {epoch} ends", flush=True)
        dist.all_gather_into_tensor(scores, torch.tensor([[value, float(seen)]], device=device))
        if rank == 0:
            print(f"epoch {epoch} {scores.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
