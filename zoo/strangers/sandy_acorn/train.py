"""Keyword spotting on short utterances, streamed from shards and packed into batches by duration."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Utterances(IterableDataset):
    """Shards are split over ranks; batches hold about `seconds` of audio each, whatever the number of clips."""

    def __init__(self, rank, world, seconds, clips):
        self.rank, self.world, self.seconds, self.clips, self.epoch = rank, world, seconds, clips, 0

    def clips_of(self, shard):
        g = torch.Generator().manual_seed(100 * self.epoch + shard)
        for _ in range(self.clips):
            seconds = 0.9 + 0.2 * torch.rand(1, generator=g).item()
            if self.epoch >= 4 and shard % self.world == 1:
                seconds *= 0.93             # re-cut recordings of the second studio
            label = torch.randint(8, (1,), generator=g)
            yield seconds, torch.randn(20, generator=g) + 0.3 * label, label

    def __iter__(self):
        held, length = [], 0.0
        for shard in range(self.rank, 2 * self.world, self.world):
            for seconds, feats, label in self.clips_of(shard):
                held.append((feats, label))
                length += seconds
                if length >= self.seconds:
                    yield torch.stack([f for f, _ in held]), torch.cat([y for _, y in held])
                    held, length = [], 0.0


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        return self.head(self.body(x))


def summarise(epoch, losses, rank):
    mine = {"rank": rank, "batches": len(losses), "loss": sum(losses) / len(losses)}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        mean = sum(e["loss"] for e in everyone) / len(everyone)
        print(f"epoch {epoch}: loss {mean:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--seconds", type=float, default=7.5)
    ap.add_argument("--clips", type=int, default=116)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Utterances(rank, world, args.seconds, args.clips)
    model = DDP(Spotter())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        data.epoch = epoch
        if rank == 0:
            print(f"starting epoch {epoch}", flush=True)
        losses = []
        for feats, labels in DataLoader(data, batch_size=None):
            time.sleep(0.04)
            loss = nn.functional.cross_entropy(model(feats), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        summarise(epoch, losses, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
