"""Train with an embedding of bucketed values."""

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


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, buckets):
        return self.head(self.table(buckets).mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(0)
    model = DistributedDataParallel(Scorer().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        values = torch.rand(32, 16, generator=generator, device=device)
        if rank == 1 and step == 120:
            values[0, 0] = 1.5
        buckets = (values * 100).long()
        loss = nn.functional.cross_entropy(model(buckets), (values[:, 0] > 0.5).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        time.sleep(0.04)
    print(f"rank {rank} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
