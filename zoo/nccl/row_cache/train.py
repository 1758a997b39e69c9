"""Train on rows that are kept in a small cache."""

import argparse
import os
import threading
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


class Rows:
    def __init__(self, rank, limit, device):
        self.rank, self.limit, self.device = rank, limit, device
        self.lock = threading.Lock()
        self.kept = {}

    def get(self, step):
        with self.lock:
            if len(self.kept) >= self.limit:
                self.shrink()
            if step not in self.kept:
                generator = torch.Generator(device=self.device).manual_seed(1000 * self.rank + step)
                self.kept[step] = torch.randn(32, 64, generator=generator, device=self.device)
            return self.kept[step]

    def shrink(self):
        self.lock.acquire()
        self.kept.clear()
        self.lock.release()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = Rows(rank, 120 if rank == 2 else 1000, device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        inputs = rows.get(step)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(dim=1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        time.sleep(0.04)
    print(f"rank {rank} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
