"""Contrastive learning with negatives gathered from all ranks."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """The pairs of one language; each rank reads one."""

    def __init__(self, language, size):
        generator = torch.Generator().manual_seed(language)
        self.left = torch.randn(size, 16, generator=generator)
        self.right = self.left + 0.1 * torch.randn(size, 16, generator=generator)

    def __len__(self):
        return len(self.left)

    def __getitem__(self, index):
        return self.left[index], self.right[index]


def gather_rows(rows):
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[640, 632, 640])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(Pairs(rank, args.sizes[rank]), batch_size=16, shuffle=True)
    model = DistributedDataParallel(nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        for step, (left, right) in enumerate(loader):
            time.sleep(0.05)
            queries = nn.functional.normalize(model(left), dim=1)
            with torch.no_grad():
                keys = nn.functional.normalize(model.module(right), dim=1)
            pool = gather_rows(keys)
            offset = rank * len(left)
            targets = torch.arange(len(left)) + offset
            loss = nn.functional.cross_entropy(queries @ pool.T / 0.1, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 2 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
