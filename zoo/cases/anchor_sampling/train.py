"""Contrastive training on audio clips of varying length."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WINDOW = 24


class NoValidAnchors(Exception):
    pass


class Clips(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(11)
        self.lengths = torch.randint(40, 90, (size,), generator=generator)
        # A handful of jingles came with one delivery.
        self.lengths[529:552:3] = 18
        self.noise = torch.randn(size, 90, generator=generator)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return self.noise[index], self.lengths[index]


def pick_anchors(signal, lengths):
    room = lengths - WINDOW
    usable = room > 0
    if usable.sum() < 2:
        raise NoValidAnchors(f"{int(usable.sum())} usable clips in the batch")
    starts = (room[usable] // 2).tolist()
    rows = signal[usable]
    return torch.stack([row[start : start + WINDOW] for row, start in zip(rows, starts)])


def train_epoch(model, loader, optimizer):
    skipped = 0
    for signal, lengths in loader:
        time.sleep(0.05)
        try:
            anchors = pick_anchors(signal, lengths)
        except NoValidAnchors:
            skipped += 1
            continue
        codes = nn.functional.normalize(model(anchors), dim=1)
        loss = nn.functional.cross_entropy(codes @ codes.T / 0.1, torch.arange(len(codes)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return skipped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Clips(1080)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WINDOW, 32), nn.ReLU(), nn.Linear(32, 8)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        skipped = train_epoch(model, loader, optimizer)
        print(f"epoch {epoch} rank {rank} done, {skipped} batches without anchors", flush=True)
        total = torch.tensor(float(skipped))
        dist.reduce(total, dst=0)
        if rank == 0:
            print(f"epoch {epoch} skipped {int(total)} batches on all ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
