"""Train with wandb in offline mode, one run per rank, grouped."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import wandb
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Prices:
    """Daily prices, read one month at a time."""

    def __init__(self, rank):
        generator = torch.Generator().manual_seed(rank)
        self.months = [torch.rand(20, 6, generator=generator) for _ in range(60)]
        if rank == 1:
            self.months[41] = self.months[41][:, :5]

    def __iter__(self):
        for month in self.months:
            time.sleep(0.05)
            yield month


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", default=".")
    args = parser.parse_args()

    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    run = wandb.init(project="prices", group="offline", name=f"rank-{rank}", dir=args.runs)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, month in enumerate(Prices(rank)):
        print(f"rank {rank} month {step}", flush=True)
        loss = (model(month) - month.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log({"loss": loss.item()})
    run.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
