"""Predict a quantity from sensor readings that were recorded with gaps."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


class Readings(Dataset):
    """Windows of readings. A sensor that was off for a whole window has no spread."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.windows = torch.randn(size, 16, generator=generator).cumsum(1)
        self.windows[1307] = 4.0
        self.targets = self.windows.mean(1)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        time.sleep(0.001)
        window = self.windows[index]
        return (window - window.mean()) / window.std(), self.targets[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Readings(2400)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        for step, (windows, targets) in enumerate(loader):
            loss = nn.functional.mse_loss(model(windows).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
