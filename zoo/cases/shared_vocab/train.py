"""Train an embedding on a vocabulary that is shared with other jobs."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import vocabulary
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def start_other_job(root):
    """Two jobs on one machine, as the scheduler would place them."""
    Path(root).mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("other_job.py")
    null = subprocess.DEVNULL
    subprocess.run([sys.executable, str(script), root, str(os.getpid())], stdin=null, stdout=null, stderr=null)
    while not (Path(root) / "other_job.ready").exists():
        time.sleep(0.05)


def train(model, optimizer, size, steps, rank):
    for step in range(steps):
        time.sleep(0.05)
        tokens = torch.randint(0, size, (32, 8))
        loss = model(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="vocab")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train(model, optimizer, 8, 36, rank)
    if rank == 0:
        start_other_job(args.root)
    dist.barrier()
    print(f"rank {rank} reads the vocabulary", flush=True)
    words = vocabulary.load(args.root)
    train(model, optimizer, len(words), 36, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
