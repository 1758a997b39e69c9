"""Train under a memory budget, so that two jobs fit on one machine."""

import argparse
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20


def set_memory_budget(extra_mib):
    """Allow what is mapped now and `extra_mib` more."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + extra_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Shard:
    """A part of the corpus: its embeddings, and an index over its words."""

    def __init__(self, number, words):
        generator = torch.Generator().manual_seed(number)
        self.embeddings = torch.randn(480, 16, generator=generator)
        self.words = words
        self.index = None

    def build_index(self, bytes_per_word=64):
        self.index = bytearray(self.words * bytes_per_word)
        return len(self.index) // MIB


def load_shards(rank, world):
    words = [200_000, 180_000, 150_000, 90_000_000]
    mine = range(rank, len(words), world)
    return [Shard(number, words[number]) for number in mine]


def train_on(shard, model, optimizer):
    for batch in shard.embeddings.split(20):
        time.sleep(0.05)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget-mib", type=int, default=2048)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    set_memory_budget(args.budget_mib)

    for number, shard in enumerate(load_shards(rank, world)):
        print(f"rank {rank} shard {number}: building the index", flush=True)
        size = shard.build_index()
        print(f"rank {rank} shard {number}: index of {size} MiB", flush=True)
        loss = train_on(shard, model, optimizer)
        print(f"rank {rank} shard {number}: loss {loss:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
