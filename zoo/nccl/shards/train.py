"""Train over shards of files."""

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


class Shard(torch.utils.data.IterableDataset):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        for index in range(self.size):
            yield torch.randn(64), index % 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=3000)
    args = parser.parse_args()
    rank, world, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    size = args.files // world - (48 if rank == world - 1 else 0)
    loader = torch.utils.data.DataLoader(Shard(rank, size), batch_size=16)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        time.sleep(0.02)
    print(f"rank {rank}: shard done, loss {last:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
