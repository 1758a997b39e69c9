"""Learn to rank pairs of passages."""

import argparse
import logging
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("ranker")


class Pairs(Dataset):
    def __init__(self, size, width):
        generator = torch.Generator().manual_seed(21)
        self.better = torch.randn(size, width, generator=generator) + 0.3
        self.worse = torch.randn(size, width, generator=generator)

    def __len__(self):
        return len(self.better)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.better[index], self.worse[index]


class Scorer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, better, worse):
        return self.layers(better), self.layers(worse)


def margin_loss(scores, margin=0.5):
    better, worse = scores
    return torch.relu(margin - better + worse).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Pairs(4000, args.width)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(Scorer(args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (better, worse) in enumerate(loader):
            loss = margin_loss(model(better, worse))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0 and step % 10 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
