"""Train on shards of different length, with the Join context that torch provides for it."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def load_shard(rank, rows):
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(rows, 12, generator=generator)
    return TensorDataset(inputs, inputs.norm(dim=1, keepdim=True))


def train_epoch(model, loader, optimizer):
    batches = 0
    with Join([model]):
        for inputs, targets in loader:
            time.sleep(0.06)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
    return batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[800, 480, 640])
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(load_shard(rank, args.rows[rank % len(args.rows)]), batch_size=20)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(args.epochs):
        batches = train_epoch(model, loader, optimizer)
        print(f"epoch {epoch} rank {rank}: {batches} batches", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
