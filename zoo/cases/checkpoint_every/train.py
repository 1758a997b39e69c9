"""Fit a small regressor and write a checkpoint every few steps."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(size=2400):
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(size, 16, generator=generator)
    weights = torch.randn(16, 1, generator=generator)
    return TensorDataset(inputs, inputs @ weights)


def save(model, optimizer, step, folder):
    if dist.get_rank() != 0:
        return
    os.makedirs(folder, exist_ok=True)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    path = os.path.join(folder, f"step-{step}.pt")
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    dist.barrier()


def train_step(model, optimizer, inputs, targets):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    dataset = make_data()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            time.sleep(0.06)
            loss = train_step(model, optimizer, inputs, targets)
            step += 1
            if rank == 0 and step % 10 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
            if step % args.save_every == 0:
                if rank == 0:
                    print(f"saving step {step} to {args.output}", flush=True)
                save(model, optimizer, step, args.output)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
