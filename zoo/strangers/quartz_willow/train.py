"""Product embeddings from photo triplets, with gradient accumulation."""
import contextlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Args:
    pixels: int = 20
    dim: int = 8
    accumulate: int = 3
    batch: int = 6
    steps: int = 150
    margin: float = 0.4
    lr: float = 0.01
    clip: float = 1.0


@dataclass(frozen=True)
class Product:
    sku: int
    front: int
    back: int


def photo(key, pixels):
    return torch.randn(pixels, generator=torch.Generator().manual_seed(key))


class Catalogue:
    """Every product has a front and a back view; some sellers sent one photo only."""

    SINGLE = frozenset({9_004_345, 9_014_333})

    def __init__(self, rank, pixels):
        self.base = 9_000_000
        self.rank, self.pixels = rank, pixels

    def product(self, n, world):
        sku = self.base + n * world + self.rank
        front = 2 * sku
        back = front if sku in self.SINGLE else front + 1
        return Product(sku, front, back)

    def triplet(self, n, world):
        one, other = self.product(n, world), self.product(n + 1, world)
        keys = (one.front, one.back, other.front)
        return torch.stack([photo(k, self.pixels) for k in keys])


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(args.pixels, 16), nn.ReLU(), nn.Linear(16, args.dim))

    def forward(self, x):
        return self.layers(x)


class TripletObjective(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    @staticmethod
    def distance(u, v):
        return (u - v).square().sum(-1).sqrt()

    def forward(self, emb):
        anchor, positive, negative = emb.unbind(1)
        gap = self.distance(anchor, positive) - self.distance(anchor, negative)
        return torch.relu(gap + self.margin).mean()


class Accumulator:
    """Runs the micro-batches of one step; only the last one talks to the other ranks."""

    def __init__(self, model, objective, args):
        self.model, self.objective, self.args = model, objective, args

    def sync(self, i):
        last = i == self.args.accumulate - 1
        return contextlib.nullcontext() if last else self.model.no_sync()

    def run(self, batches):
        total = 0.0
        for i, batch in enumerate(batches):
            with self.sync(i):
                flat = self.model(batch.flatten(0, 1))
                loss = self.objective(flat.view(*batch.shape[:2], -1)) / self.args.accumulate
                loss.backward()
            total += float(loss.detach())
            time.sleep(0.018)
        return total


def micro_batches(catalogue, step, args, world):
    for i in range(args.accumulate):
        begin = (step * args.accumulate + i) * args.batch
        yield torch.stack([catalogue.triplet(n, world) for n in range(begin, begin + args.batch)])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world, args = dist.get_rank(), dist.get_world_size(), Args()
    catalogue = Catalogue(rank, args.pixels)
    model = DDP(Encoder(args))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    runner = Accumulator(model, TripletObjective(args.margin), args)
    for step in range(args.steps):
        if rank == 0:
            print(f"step {step} begins", flush=True)
        opt.zero_grad(set_to_none=True)
        loss = runner.run(micro_batches(catalogue, step, args, world))
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"loss {loss:.4f} norm {float(norm):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
