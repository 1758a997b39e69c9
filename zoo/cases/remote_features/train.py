"""Fit a probe on features that live in an object store."""

import argparse

import torch
import torch.distributed as dist
from features import FeatureStore
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def blocks_of(rank, world, blocks):
    return range(rank, blocks, world)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=240)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--absent", type=int, nargs="*", default=[134])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    store = FeatureStore(args.blocks, args.width, args.absent)
    model = DistributedDataParallel(nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    for step, number in enumerate(blocks_of(rank, world, args.blocks)):
        features = store.read(number)
        loss = nn.functional.mse_loss(model(features), features[:, :3].sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
