"""Language-model training that snapshots the weights after every so many tokens."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Snapshots:
    def __init__(self, folder, every):
        self.folder = folder
        self.every = every
        self.due = every

    def after_epoch(self, model, tokens):
        if tokens < self.due:
            return
        self.due += self.every
        if dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save(model.module.state_dict(), os.path.join(self.folder, f"{tokens}.pt"))
        dist.barrier()


def documents(rank, epoch, count):
    generator = torch.Generator().manual_seed(100 * epoch + rank)
    shortest = 8 if (rank, epoch) == (2, 1) else 20
    for _ in range(count):
        length = int(torch.randint(shortest, 24, (), generator=generator))
        yield torch.randint(0, 64, (4, length), generator=generator)


def train_epoch(model, optimizer, rank, epoch, count):
    tokens = 0
    for batch in documents(rank, epoch, count):
        time.sleep(0.05)
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tokens += batch.numel()
    return tokens, loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="snapshots")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--documents", type=int, default=25)
    parser.add_argument("--snapshot-tokens", type=int, default=2000)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    snapshots, seen = Snapshots(args.output, args.snapshot_tokens), 0
    for epoch in range(args.epochs):
        tokens, loss = train_epoch(model, optimizer, rank, epoch, args.documents)
        seen += tokens
        print(f"epoch {epoch} rank {rank} tokens {seen} loss {loss:.4f}", flush=True)
        snapshots.after_epoch(model, seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
