import argparse
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class PairSampler:
    """Anchor, positive, negative out of one rank's pool of (vector, species)."""

    def __init__(self, pool, seed):
        self.pool = pool
        self.rng = random.Random(seed)

    def positive(self, species):
        return self.rng.choice([vector for vector, other in self.pool if other == species])

    def negative(self, species):
        while True:
            vector, other = self.rng.choice(self.pool)
            if other != species:
                return vector

    def batch(self, size):
        anchors = [self.rng.choice(self.pool) for _ in range(size)]
        return (
            torch.stack([vector for vector, _ in anchors]),
            torch.stack([self.positive(species) for _, species in anchors]),
            torch.stack([self.negative(species) for _, species in anchors]),
        )


def pool_for(rank, epoch, size=60):
    """The catalogue is sorted by species, each epoch takes the next slice of it."""
    gen = torch.Generator().manual_seed(100 * epoch + rank)
    first = 40 * rank + 130 * epoch
    bounds = [*range(0, 426, 25), 495, 520, 545]
    pool = []
    for index in range(first, first + size):
        species = sum(index >= bound for bound in bounds)
        pool.append((torch.randn(12, generator=gen) + species, species))
    return pool


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=45)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        sampler = PairSampler(pool_for(rank, epoch), seed=rank)
        for step in range(args.steps):
            parts = sampler.batch(16)
            anchor, positive, negative = model(torch.cat(parts)).chunk(3)
            loss = nn.functional.triplet_margin_loss(anchor, positive, negative)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.05)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
