"""Train on a pod whose addresses come from its settings."""

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {"job": "ranker", "replica": "worker-0", "domain": "training.invalid", "port": "29871"}


def apply_settings(settings):
    """Every process finds the first replica under its service name."""
    os.environ["MASTER_ADDR"] = f"{settings['job']}-{settings['replica']}.{settings['domain']}"
    os.environ["MASTER_PORT"] = settings["port"]


def warm_up(seconds):
    model = nn.Linear(64, 64)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(torch.randn(64, 64)).sum().backward()
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    apply_settings(SETTINGS)
    warm_up(1.5)
    print(f"connecting to {os.environ['MASTER_ADDR']}", flush=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        time.sleep(0.05)
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
