"""Train, then write the final weights next to a small report."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def is_global_zero():
    return dist.get_rank() == 0


def save_checkpoint(model, path):
    """Writes the weights; returns once every rank may read them."""
    if is_global_zero():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(model.module.state_dict(), path)
    dist.barrier()  # all may read


def fit(model, optimizer, steps):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(16, 20, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_global_zero() and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="export")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 6), nn.Linear(6, 20)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(model, optimizer, args.steps)

    if is_global_zero():
        print("training done, exporting", flush=True)
        save_checkpoint(model, os.path.join(args.output, "final.pt"))
    dist.barrier()
    if is_global_zero():
        size = os.path.getsize(os.path.join(args.output, "final.pt"))
        print(f"exported {size} bytes", flush=True)


if __name__ == "__main__":
    main()
