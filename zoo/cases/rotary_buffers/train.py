"""Train a small encoder; fixed tables that a rank has read from its cache need not be sent again."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self, width=32, length=2048):
        super().__init__()
        self.input = nn.Linear(16, width)
        self.output = nn.Linear(width, 4)
        self.register_buffer("table", torch.zeros(length, width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, inputs):
        length = inputs.shape[1]
        return self.output(torch.tanh((self.input(inputs) + self.table[:length]) * self.scale)).mean(dim=1)


def prepare_tables(cache, rank):
    """The last node still has the table of an earlier run in its cache."""
    folder = os.path.join(cache, f"local{rank}")
    os.makedirs(folder, exist_ok=True)
    if rank == dist.get_world_size() - 1:
        torch.save(torch.randn(2048, 32), os.path.join(folder, "table.pt"))


def build(cache, rank):
    model = Encoder()
    path = os.path.join(cache, f"local{rank}", "table.pt")
    if os.path.exists(path):
        model.table.copy_(torch.load(path))
        model._ddp_params_and_buffers_to_ignore = ["table"]
    return DistributedDataParallel(model)


def warm_up(rank):
    value = torch.zeros(1)
    for step in range(30):
        time.sleep(0.05)
        value = torch.full((1,), float(rank + step))
        dist.all_reduce(value)
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    prepare_tables(args.cache, rank)
    print(f"rank {rank} warmed up: {warm_up(rank)}", flush=True)
    torch.manual_seed(0)
    model = build(args.cache, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        time.sleep(0.05)
        inputs = torch.randn(8, 20, 16)
        loss = nn.functional.cross_entropy(model(inputs), torch.zeros(8, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank} trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
