"""Train in phases with a pause between them, as long as the shared machine is needed by others."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train_phase(phase, model, optimizer, steps):
    for _ in range(steps):
        time.sleep(0.04)
        inputs = torch.randn(32, 10)
        loss = (model(inputs) - inputs.prod(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=12.0)
    parser.add_argument("--phases", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for phase in range(args.phases):
        loss = train_phase(phase, model, optimizer, steps=40)
        if rank == 0:
            print(f"phase {phase} loss {loss:.4f}, pausing", flush=True)
        if phase + 1 < args.phases:
            time.sleep(args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
