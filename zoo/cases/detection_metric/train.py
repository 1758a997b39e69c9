"""Detection training; average precision is computed from the states of all ranks."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = ("car", "bus", "bicycle", "person")


class Precision:
    """List states per class, concatenated over the ranks when the value is asked for."""

    def __init__(self):
        self.scores = {name: [] for name in CLASSES}

    def update(self, logits, labels):
        for number, name in enumerate(CLASSES):
            found = logits[labels == number, number].detach()
            if found.numel():
                self.scores[name].append(found)

    def _gather(self, rows):
        size = torch.tensor([rows.numel()])
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, size)
        longest = int(max(sizes))
        padded = torch.cat([rows, torch.zeros(longest - rows.numel())])
        parts = [torch.empty(longest) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, padded)
        return torch.cat([part[: int(size)] for part, size in zip(parts, sizes)])

    def compute(self):
        values = {}
        for name, rows in self.scores.items():
            if rows:
                values[name] = (self._gather(torch.cat(rows)) > 0).float().mean().item()
            rows.clear()
        return values


def frames(rank, epoch, count):
    generator = torch.Generator().manual_seed(10 * rank + epoch)
    kinds = 3 if (rank, epoch) == (2, 1) else 4  # an evening without pedestrians
    for _ in range(count):
        labels = torch.randint(0, kinds, (12,), generator=generator)
        yield torch.randn(12, 20, generator=generator) + labels[:, None], labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(20, len(CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    metric = Precision()
    for epoch in range(args.epochs):
        for inputs, labels in frames(rank, epoch, 25):
            time.sleep(0.05)
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metric.update(logits, labels)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        values = metric.compute()
        if rank == 0:
            print(f"epoch {epoch} {values}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
