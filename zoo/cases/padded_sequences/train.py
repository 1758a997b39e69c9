"""Forecast series of different lengths; what is missing is NaN and is left out of the loss."""

import argparse
import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


class Series(Dataset):
    def __init__(self, size, length=24):
        generator = torch.Generator().manual_seed(3)
        self.values = torch.randn(size, length, generator=generator).cumsum(1)
        ends = torch.randint(length // 2, length + 1, (size,), generator=generator)
        for row, end in enumerate(ends.tolist()):
            self.values[row, end:] = math.nan

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.values[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Series(1200)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), 24)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    skipped = 0
    for epoch in range(args.epochs):
        for step, values in enumerate(loader):
            known = torch.isfinite(values)
            seen = torch.where(known, values, torch.zeros(()))
            forecast = model(seen)
            loss = (forecast[known] - values[known]).pow(2).mean()
            if step % 20 == 7:
                # A look at the plain mean, which has no use for training.
                (forecast - values).pow(2).mean().backward()
                skipped += 1
                optimizer.zero_grad()
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {rank}: {skipped} batches looked at only", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
