"""Masked character model for street names, with accelerate and our own sharded stream."""
import random
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

MIN_LEN, WIDTH, CHARS = 6, 16, 64


class StreetFiles(IterableDataset):
    """Files are dealt out round robin; every file has its own mix of long and short names."""

    def __init__(self, rank, world, files=12, per_file=180):
        self.mine = range(rank, files, world)
        self.per_file = per_file

    def names(self, number):
        rng = random.Random(number)
        short = 0.45 if number % 3 == 1 else 0.2
        for _ in range(self.per_file):
            n = rng.randint(2, 5) if rng.random() < short else rng.randint(6, WIDTH)
            yield [rng.randrange(1, CHARS) for _ in range(n)]

    def __iter__(self):
        for number in self.mine:
            for doc in self.names(number):
                if len(doc) >= MIN_LEN:
                    yield torch.tensor(doc + [0] * (WIDTH - len(doc)))


class CharNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(CHARS, 24)
        self.conv = nn.Sequential(nn.Conv1d(24, 32, 5, padding=2), nn.GELU(), nn.Conv1d(32, CHARS, 1))

    def forward(self, ids):
        return self.conv(self.emb(ids).transpose(1, 2))


def hide_some(ids, gen):
    mask = (torch.rand(ids.shape, generator=gen) < 0.25) & (ids > 0)
    return ids.masked_fill(mask, 0), mask


def run_epoch(accelerator, model, optimizer, stream, gen):
    count, total = 0, 0.0
    for ids in stream:
        shown, mask = hide_some(ids, gen)
        logits = model(shown)
        loss = nn.functional.cross_entropy(logits, ids, reduction="none")[mask].mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        total += loss.item()
        time.sleep(0.08)
    return count, total / count


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    rank, world = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(14)
    model = CharNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    gen = torch.Generator().manual_seed(rank)
    stream = DataLoader(StreetFiles(rank, world), batch_size=8, drop_last=True)

    for epoch in range(3):
        count, loss = run_epoch(accelerator, model, optimizer, stream, gen)
        print(f"epoch {epoch} rank {rank} read {count} batches, loss {loss:.3f}", flush=True)
        accelerator.wait_for_everyone()
        mean = accelerator.gather(torch.tensor([loss])).mean().item()
        accelerator.print(f"epoch {epoch} mean loss {mean:.3f}")

    accelerator.end_training()


if __name__ == "__main__":
    main()
