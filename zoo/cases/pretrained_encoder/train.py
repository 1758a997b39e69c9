"""Adapt a pretrained encoder after a short warm-up of the head."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from weights import pretrained


def train(model, rank, steps, width):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        time.sleep(0.05)
        loss = model(torch.randn(32, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def head_statistics(rank, head):
    """Rank 1 keeps the statistics of the head."""
    if rank == 1:
        time.sleep(0.8)
        print(f"head norm {sum(p.norm().item() for p in head.parameters()):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="weights")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    head = nn.Linear(64, 8)
    train(head, rank, 36, 64)
    head_statistics(rank, head)
    train(nn.Sequential(pretrained(args.cache, rank), head), rank, 36, 64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
