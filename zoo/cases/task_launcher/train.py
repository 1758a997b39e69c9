"""Train under a batch scheduler: its variables say how many tasks there are."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def scheduler_environment():
    """The scheduler knows the size of the job; torch reads WORLD_SIZE."""
    tasks = os.environ.get("SLURM_NTASKS")
    if tasks is not None:
        os.environ["WORLD_SIZE"] = tasks
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def baseline(rank):
    """The loss of an untrained model, for the table of results."""
    torch.manual_seed(rank)
    model = nn.Linear(8, 1)
    losses = []
    for _ in range(60):
        time.sleep(0.025)
        losses.append(model(torch.randn(16, 8)).square().mean().item())
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    rank, world = scheduler_environment()
    print(f"task {rank} of {world}, baseline {baseline(rank):.4f}", flush=True)
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
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
