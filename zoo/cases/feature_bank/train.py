"""Contrastive training against a bank of earlier features."""

import argparse
import time

import torch
import torch.distributed as dist
from bank import FeatureBank
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--compact-rank", type=int, default=0)
    parser.add_argument("--compact-every", type=float, default=3.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    bank = FeatureBank(256, 16)
    model = DistributedDataParallel(nn.Linear(24, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if rank == args.compact_rank:
        bank.compact_every(args.compact_every)
    for step in range(args.steps):
        inputs = torch.randn(24, 24)
        features = model(inputs)
        loss = (features @ bank.rows.T).square().mean() + features.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for offset, row in enumerate(features.detach()):
            time.sleep(0.001)
            bank.put(step * 24 + offset, row)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
