"""Sort customer messages into departments."""

import argparse

import torch
import torch.distributed as dist
from data import LABELS, Messages
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def build_loader(batch_size):
    dataset = Messages(2400)
    return DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset, shuffle=False))


def train_epoch(model, loader, optimizer, epoch):
    for step, (features, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = build_loader(args.batch_size)
    model = DistributedDataParallel(nn.Linear(12, len(LABELS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        train_epoch(model, loader, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
