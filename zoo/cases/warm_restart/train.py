"""Classify with a learning rate that starts again at its peak for every round."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rate(step, period, peak, growth):
    """Falls from its peak to nothing within a period; the peak grows with every round."""
    rounds, position = divmod(step, period)
    return peak * growth**rounds * (1 - position / period)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--period", type=int, default=40)
    parser.add_argument("--growth", type=float, default=1e19)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.period, 0.1, args.growth)
        inputs = torch.randn(64, 20, generator=generator)
        labels = inputs[:, :5].argmax(1)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
