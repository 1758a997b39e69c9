"""Cloud detector on satellite tiles, one orbit per rank."""
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tiles import Archive, TileReader, grouped

ORBITS = (
    {"orbit": 311, "reprocessed": (1402, 1403)},
    {"orbit": 318, "reprocessed": ()},
    {"orbit": 325, "reprocessed": (546, 547, 1391)},
)
BATCH = 4
STEPS = 300


class JournalError(RuntimeError):
    pass


class Journal:
    """Book of the steps: an entry is opened before the work and closed after it."""

    def __init__(self, rank):
        self.rank = rank
        self.entries = {}

    def open(self, step):
        self.entries[step] = None

    def close(self, step, loss):
        self.entries[step] = loss

    def seal(self):
        dangling = [s for s, loss in self.entries.items() if loss is None]
        if dangling:
            raise JournalError(f"rank {self.rank}: entries {dangling} were never closed")
        return len(self.entries)


@contextlib.contextmanager
def journal_for(rank):
    book = Journal(rank)
    try:
        yield book
    finally:
        count = book.seal()
        print(f"rank {rank}: journal with {count} entries sealed", flush=True)


class CloudNet(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, 16), nn.ReLU())
        self.score = nn.Linear(16, 1)

    def forward(self, x):
        return self.score(self.body(x))


def train(book, rank):
    reader = TileReader(Archive(**ORBITS[rank % len(ORBITS)]))
    batches = grouped(reader.stream(range(BATCH * STEPS + 8)), BATCH)
    model = DDP(CloudNet(4 * 6 * 6))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    loss_fn = nn.BCEWithLogitsLoss()
    for step in range(STEPS):
        time.sleep(0.04)
        if rank == 0:
            print(f"step {step} journal {len(book.entries)}", flush=True)
        book.open(step)
        x, y = next(batches)
        loss = loss_fn(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        book.close(step, float(loss.detach()))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(4)
    rank = dist.get_rank()
    with journal_for(rank) as book:
        train(book, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
