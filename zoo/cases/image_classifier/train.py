"""A plain image classifier on several ranks."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self, size, classes=5):
        generator = torch.Generator().manual_seed(9)
        self.pixels = torch.rand(size, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, classes, (size,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.pixels[index], self.labels[index]


class Classifier(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.head = nn.Linear(72, classes)

    def forward(self, pixels):
        return self.head(self.features(pixels))


def train_epoch(model, loader, optimizer, epoch):
    running = 0.0
    for step, (pixels, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {running / (step + 1):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Images(4000)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
