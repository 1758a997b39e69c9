"""Forecast sensor readings; every batch is checked before it is used."""

import argparse
import time

import torch
import torch.distributed as dist
from checks import check_batch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


class Readings(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(31)
        self.values = torch.rand(size, 12, generator=generator)
        # One sensor was recalibrated in the field.
        self.values[560, 3] = 40.0

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        time.sleep(0.003)
        return self.values[index, :-1], self.values[index, -1:]


def train(model, loader, optimizer, epoch, rank):
    for step, (inputs, targets) in enumerate(loader):
        check_batch(inputs, low=-5.0, high=5.0)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2400)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Readings(args.samples)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(11, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        train(model, loader, optimizer, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
