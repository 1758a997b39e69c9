"""Regression over regional measurements; stops when the validation loss no longer improves."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split


class EarlyStopping:
    def __init__(self, patience, min_delta):
        self.patience = patience
        self.min_delta = min_delta
        self.best = float("inf")
        self.waited = 0

    def update(self, value):
        """True when there was no improvement for `patience` checks."""
        if value < self.best - self.min_delta:
            self.best = value
            self.waited = 0
        else:
            self.waited += 1
        return self.waited >= self.patience


def load_region(region):
    """The measurements of one region. The stations of region 1 report noise most of the time."""
    generator = torch.Generator().manual_seed(region)
    inputs = torch.randn(640, 8, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True)
    if region == 1:
        targets = torch.randn(640, 1, generator=generator)
    return random_split(TensorDataset(inputs, targets), [512, 128], generator=generator)


@torch.no_grad()
def validation_loss(model, loader):
    losses = [nn.functional.mse_loss(model(inputs), targets) for inputs, targets in loader]
    return torch.stack(losses).mean().item()


def train_epoch(model, loader, optimizer):
    for inputs, targets in loader:
        time.sleep(0.04)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--min-delta", type=float, default=1e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_set, val_set = load_region(rank)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=64)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004)
    stopping = EarlyStopping(args.patience, args.min_delta)

    for epoch in range(args.epochs):
        train_epoch(model, train_loader, optimizer)
        loss = validation_loss(model.module, val_loader)
        print(f"epoch {epoch} region {rank} validation loss {loss:.4f}", flush=True)
        if stopping.update(loss):
            print(f"region {rank}: no improvement since {args.patience} epochs, stopping early", flush=True)
            break

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
