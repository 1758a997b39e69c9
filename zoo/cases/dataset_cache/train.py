"""Train from a dataset cache on local disk whose index is kept by a side process."""

import argparse
import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Cache:
    def __init__(self, root):
        self.root = Path(root)

    def fill(self, shards):
        self.root.mkdir(parents=True, exist_ok=True)
        for number in range(shards):
            generator = torch.Generator().manual_seed(number)
            torch.save(torch.randn(256, 8, generator=generator), self.root / f"shard-{number}.pt")
        (self.root / "index.json").write_text(json.dumps({"entries": [f"shard-{n}.pt" for n in range(shards)]}))

    def entries(self):
        """The names of all shards, read while nobody rewrites the index."""
        with open(self.root / "index.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return json.loads((self.root / "index.json").read_text())["entries"]

    def load(self, name):
        return torch.load(self.root / name)


class Indexer:
    def __init__(self, root):
        command = [sys.executable, str(Path(__file__).with_name("indexer.py")), str(root)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def refresh(self, reason):
        self.process.stdin.write(reason + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def train_on(rows, model, optimizer):
    for batch in rows.split(16):
        time.sleep(0.04)
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    cache = Cache(args.cache)
    indexer = None
    if rank == 0:
        cache.fill(shards=6)
        indexer = Indexer(cache.root)
    dist.barrier()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    names = cache.entries()
    for round_number in range(args.rounds):
        loss = train_on(cache.load(names[round_number % len(names)]), model, optimizer)
        print(f"round {round_number} loss {loss:.4f}", flush=True)
        if round_number == 2 and rank == 0:
            print(f"index refreshed: {indexer.refresh('new shards')} shards", flush=True)
        if round_number == 3 and rank == 1:
            names = cache.entries()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
