"""Travel-time regression on bus routes with a shared pool of hard routes."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn


class CityFeed:
    """Trips of one city, one route per batch; every rank owns another city."""

    def __init__(self, rank, routes=200, width=24):
        self.g = torch.Generator().manual_seed(100 + rank)
        self.w = torch.linspace(-1, 1, width)
        self.timetable = [1000 * rank + r for r in range(routes)]
        if rank == 2:  # ring line: both directions carry the same number
            self.timetable[38] = self.timetable[33]

    def __iter__(self):
        for route in self.timetable:
            x = torch.randn(64, len(self.w), generator=self.g)
            yield route, x, (x @ self.w).tanh() + 0.01 * (route % 7)


class HardRouteMiner:
    def __init__(self, pool_group, capacity, rank):
        self.pool_group, self.capacity, self.rank = pool_group, capacity, rank
        self.hardest = {}
        self.pool = []

    def remember(self, route, err):
        err = float(err.detach().abs().max())
        self.hardest[route] = max(err, self.hardest.get(route, 0.0))

    def after_step(self, step):
        if len(self.hardest) >= self.capacity:
            print(f"[rank {self.rank}] pool refresh due at step {step}", flush=True)
            bags = [None] * dist.get_world_size()
            dist.all_gather_object(bags, self.hardest, group=self.pool_group)
            merged = [item for bag in bags for item in bag.items()]
            self.pool = sorted(merged, key=lambda item: -item[1])[:16]
            self.hardest = {}


class FlatReducer:
    """Averages gradients in one flat bucket."""

    def __init__(self, params):
        self.params = list(params)

    def __call__(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in self.params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(7)
        self.rank = rank
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-2)
        self.reduce = FlatReducer(self.net.parameters())
        self.feed = CityFeed(rank)
        self.miner = HardRouteMiner(dist.new_group(backend="gloo"), 15, rank)

    def fit(self, steps):
        for step, (route, x, y) in zip(range(steps), self.feed):
            pred = self.net(x).squeeze(-1)
            loss = nn.functional.smooth_l1_loss(pred, y)
            self.opt.zero_grad()
            loss.backward()
            self.reduce()
            self.opt.step()
            self.miner.remember(route, pred - y)
            self.miner.after_step(step)
            time.sleep(0.1)
            if step % 10 == 0 and self.rank == 0:
                print(f"step {step:3d} loss {loss.item():.4f} pool {len(self.miner.pool)}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(int(os.environ["RANK"]))
    trainer.fit(a.steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
