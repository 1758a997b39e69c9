"""Train, then write each rank's summary into the run's folder."""

import argparse
import json
import os
import platform
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def describe(rank):
    """What the run was made with. The inventory service answers one rank after the other."""
    facts = {"torch": torch.__version__, "python": platform.python_version()}
    time.sleep(0.5 * (rank + 1))
    facts["threads"] = torch.get_num_threads()
    return facts


class Summary:
    def __init__(self, folder):
        self.folder = folder
        self.fresh = not os.path.exists(folder)

    def write(self, rank, facts):
        if self.fresh:
            os.makedirs(self.folder)
        with open(os.path.join(self.folder, f"summary-{rank}.json"), "w") as file:
            json.dump(facts, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="out")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for phase in range(2):
        for step in range(args.steps):
            time.sleep(0.04)
            inputs = torch.randn(16, 8)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if phase == 0:
            summary = Summary(args.folder)
            print(f"rank {rank} writes its summary, loss {loss.item():.4f}", flush=True)
            summary.write(rank, describe(rank))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
