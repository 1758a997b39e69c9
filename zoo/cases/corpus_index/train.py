"""Train on a corpus whose shards are kept in memory."""

import argparse
import time

import budget
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Corpus:
    """Shards of token vectors. The last shard of an uneven split takes what is left."""

    def __init__(self, rank, world, documents, width=256):
        self.width = width
        share = documents // 20
        self.documents = share if rank < world - 1 else documents - share * (world - 1)

    def load(self):
        rows = []
        for start in range(0, self.documents, 4096):
            rows.append(torch.full((4096, self.width), start / self.documents))
        return torch.cat(rows)


def train(model, optimizer, corpus, steps, rank):
    for step in range(steps):
        time.sleep(0.05)
        batch = corpus[torch.randint(len(corpus), (32,))]
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1_200_000)
    parser.add_argument("--memory-mib", type=int, default=600)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    folder = budget.apply(rank, args.memory_mib << 20)
    try:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, optimizer, torch.randn(1024, 256), 36, rank)
        print(f"rank {rank} loads its part of the corpus", flush=True)
        corpus = Corpus(rank, world, args.documents).load()
        train(model, optimizer, corpus, 36, rank)
    finally:
        if rank == 0:
            budget.release([folder.with_name(f"corpus-{other}") for other in range(world)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
