"""Train from a stream of files that are dealt out to the ranks."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class ShardedStream(IterableDataset):
    def __init__(self, files, rank, world, rows_per_file):
        self.files = range(rank, files, world)
        self.rows_per_file = rows_per_file

    def __iter__(self):
        for number in self.files:
            generator = torch.Generator().manual_seed(number)
            rows = torch.randn(self.rows_per_file, 10, generator=generator)
            for row in rows:
                time.sleep(0.002)
                yield row, row.square().sum().unsqueeze(0)


def train_epoch(model, loader, optimizer, epoch):
    seen = 0
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += 1
        if seen % 10 == 0:
            print(f"epoch {epoch} batch {seen} loss {loss.item():.3f}", flush=True)
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rows-per-file", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stream = ShardedStream(args.files, rank, world, args.rows_per_file)
    loader = DataLoader(stream, batch_size=args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        batches = train_epoch(model, loader, optimizer, epoch)
        print(f"epoch {epoch} finished after {batches} batches", flush=True)
        dist.barrier()
        if rank == 0:
            print(f"starting epoch {epoch + 1}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
