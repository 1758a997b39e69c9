"""A layer whose weights live in shards, gathered for every forward pass; train and validate."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ShardedLinear(nn.Module):
    """Each rank keeps a slice of the rows and gathers the whole matrix when it is needed."""

    def __init__(self, inputs, outputs):
        super().__init__()
        rows = outputs // dist.get_world_size()
        self.shard = nn.Parameter(torch.randn(rows, inputs) / inputs**0.5)

    def forward(self, inputs):
        parts = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.shard.detach())
        parts[dist.get_rank()] = self.shard
        return inputs @ torch.cat(parts).T


def make_loader(rank, rows, seed):
    generator = torch.Generator().manual_seed(seed + rank)
    inputs = torch.randn(rows, 12, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.roll(1, dims=1)), batch_size=8)


def train(model, loader, optimizer):
    for inputs, targets in loader:
        time.sleep(0.05)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def validate(model, loader):
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            time.sleep(0.02)
            total += nn.functional.mse_loss(model(inputs), targets).item()
            count += 1
    summed = torch.tensor([total, float(count)])
    dist.all_reduce(summed)
    return (summed[0] / summed[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--documents", type=int, nargs="+", default=[168, 96, 168])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = ShardedLinear(12, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = make_loader(rank, 240, seed=0)
    # Packing gives every rank as many sequences as its documents make.
    valid_loader = make_loader(rank, args.documents[rank], seed=50)
    for epoch in range(args.epochs):
        loss = train(model, train_loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch} train loss {loss:.4f}, validating", flush=True)
        value = validate(model, valid_loader)
        if rank == 0:
            print(f"epoch {epoch} validation loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
