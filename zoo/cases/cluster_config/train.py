"""Train on the ranks that the cluster configuration describes."""

import argparse
import logging
import os
import sys
import time

import torch
import torch.distributed as dist
from config import Config
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("train")


def warm_up(config, seconds=1.5):
    """A short run without the others, so that kernels and caches are ready."""
    model = nn.Sequential(nn.Linear(12, config.width), nn.ReLU(), nn.Linear(config.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        inputs = torch.randn(32, 12)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)


def connect(config):
    rank = int(os.environ["RANK"])
    log.info("rank %d joins a world of %d", rank, config.world_size)
    dist.init_process_group("gloo", rank=rank, world_size=config.world_size)
    return rank


def train(config, rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, config.width), nn.ReLU(), nn.Linear(config.width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for step in range(config.steps):
        inputs = torch.randn(32, 12)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            log.info("step %d loss %.4f", step, loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks-per-node", type=int, default=3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)

    config = Config(nodes=args.nodes, ranks_per_node=args.ranks_per_node)
    warm_up(config)
    rank = connect(config)
    train(config, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
