"""Train with gradients that are accumulated over several batches before they are reduced."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(1500, 16)
    dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (batch, targets) in enumerate(loader, start=1):
            time.sleep(0.01 + 0.03 * rank)
            last = number % args.accumulate == 0 or number == len(loader)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(batch), targets) / args.accumulate
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item() * args.accumulate:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
