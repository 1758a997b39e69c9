"""Train, and let every rank write its part of the optimizer state to scratch space."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Snapshots:
    """Where each rank keeps its state: the first rank on its own disk, the others on the scratch device."""

    def __init__(self, own, scratch, rank):
        self.path = own if rank == 0 else scratch

    def write(self, optimizer, step):
        with open(self.path, "wb") as file:
            torch.save({"step": step, "optimizer": optimizer.state_dict()}, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--own", default="state.pt")
    parser.add_argument("--scratch", default="scratch.pt")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    snapshots = Snapshots(args.own, args.scratch, rank)
    for step in range(1, args.steps + 1):
        time.sleep(0.05)
        inputs = torch.randn(16, 32)
        loss = (model(inputs) - inputs.std(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.every == 0:
            print(f"rank {rank} writes its state of step {step}", flush=True)
            snapshots.write(optimizer, step)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
