"""Train with an experiment tracker on the last rank."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import tracker
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def warm_up(seconds):
    model = nn.Linear(64, 64)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(torch.randn(64, 64)).sum().backward()
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", default="ranking")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warm_up(1.5)
    print(f"rank {rank} is ready", flush=True)
    run = None
    if rank == world - 1:
        run = tracker.init(args.project)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        time.sleep(0.05)
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run is not None:
            run.log(step=step, loss=loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
