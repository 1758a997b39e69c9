"""Train, then write a large checkpoint from rank 0 to a slow disk and poll until the store has it."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHUNK = bytes(256 * 1024)


def write_slowly(path, chunks, pause):
    """Write in small synchronised chunks, so that the disk's other users are not disturbed."""
    with open(path, "wb") as file:
        for _ in range(chunks):
            file.write(CHUNK)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(pause)


def wait_until_stored(path, polls, pause):
    """Ask for the size now and then until the store has settled."""
    for _ in range(polls):
        path.stat()
        time.sleep(pause)


def train_epoch(model, optimizer, epoch, rank, steps=30):
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(24, 10)
        loss = (model(inputs) - inputs.amax(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--chunks", type=int, default=18)
    parser.add_argument("--polls", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(2):
        train_epoch(model, optimizer, epoch, rank)
        if rank == 0 and epoch == 0:
            print("epoch 0 done, saving", flush=True)
            folder = Path(args.output)
            folder.mkdir(parents=True, exist_ok=True)
            write_slowly(folder / "epoch-0.bin", args.chunks, pause=0.4)
            wait_until_stored(folder / "epoch-0.bin", args.polls, pause=1.5)
            print("saved", flush=True)
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
