"""Denoise windows of audio; the noise is mixed in by the data-loading workers."""

import argparse
import time

import torch
import torch.distributed as dist
from noise import NoiseBank
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Windows(Dataset):
    def __init__(self, bank, size=1024):
        generator = torch.Generator().manual_seed(9)
        self.windows = torch.randn(size, bank.width, generator=generator)
        self.bank = bank

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        time.sleep(0.002)
        clean = self.windows[index]
        return self.bank.mix(clean, index), clean


def train_epoch(epoch, model, loader, optimizer):
    for noisy, clean in loader:
        loss = nn.functional.l1_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    bank = NoiseBank()
    dataset = Windows(bank)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 80)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        if epoch == 2 and rank == 1:
            print("refreshing the noises of rank 1", flush=True)
            bank.refresh(seed=epoch)
        loss = train_epoch(epoch, model, loader, optimizer)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
