"""Autoencoder on vibration sensors with global channel statistics."""
import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CHANNELS = 12


class ChannelStats:
    def __init__(self, limit=8.0):
        self.limit = limit
        self.total = torch.zeros(CHANNELS)
        self.count = 0

    def observe(self, x):
        if x.abs().max() > self.limit:
            lo, hi = np.percentile(x.numpy(), [1, 99])
            block = np.clip(x.numpy().astype("float64"), lo, hi)
            self.total = self.total + torch.from_numpy(block.mean(axis=0))
        else:
            self.total = self.total + x.mean(dim=0)
        self.count += 1

    def summary(self, step):
        print(f"rank {dist.get_rank()} summary at step {step}", flush=True)
        packed = self.total / self.count
        dist.all_reduce(packed)
        return packed / dist.get_world_size()


class Recorder:
    """Plays back the record of one machine."""

    def __init__(self, rank):
        self.rng = np.random.default_rng(rank)
        self.rank = rank
        self.pos = 0

    def next_block(self):
        block = self.rng.standard_normal((96, CHANNELS)).astype("float32").clip(-5, 5)
        if self.rank == 2 and self.pos == 47:
            block[10:14, 3] = 32.0  # saturated channel
        self.pos += 1
        return torch.from_numpy(block)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(CHANNELS, 32), nn.GELU(), nn.Linear(32, 4))
        self.up = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, CHANNELS))

    def forward(self, x):
        return self.up(self.down(x))


def run(steps):
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(AutoEncoder())
    optim = torch.optim.Adam(model.parameters(), lr=2e-3)
    stats, source = ChannelStats(), Recorder(rank)
    center = torch.zeros(CHANNELS)
    for step in range(steps):
        x = source.next_block()
        stats.observe(x)
        x = (x - center).clamp(-5, 5)
        loss = nn.functional.mse_loss(model(x), x)
        optim.zero_grad()
        loss.backward()
        optim.step()
        time.sleep(0.1)
        if step % 10 == 9:
            center = stats.summary(step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} |center| {center.norm():.4f}", flush=True)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=100)
    ns = cli.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run(ns.steps)
    dist.destroy_process_group()
