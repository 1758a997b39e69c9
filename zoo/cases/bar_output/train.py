"""Train with a progress bar that rewrites its line."""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Bar:
    def __init__(self, total, width=30, stream=sys.stderr):
        self.total, self.width, self.stream = total, width, stream
        self.done = 0

    def advance(self, **values):
        self.done += 1
        filled = "#" * (self.width * self.done // self.total)
        text = " ".join(f"{name}={value:.4f}" for name, value in values.items())
        self.stream.write(f"\r[{filled:<{self.width}}] {self.done}/{self.total} {text}")
        self.stream.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    bar = Bar(args.steps) if rank == 0 else None
    for step in range(args.steps):
        time.sleep(0.02)
        loss = model(torch.randn(16, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bar is not None:
            bar.advance(loss=loss.item(), lr=0.02)
    if rank == 0:
        print(f"\nfinished with loss {loss.item():.4f}", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
