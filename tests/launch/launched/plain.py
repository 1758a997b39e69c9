"""A script for torchrun and its like: the launcher tells the rank in the environment."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from faults import misbehave
from torch.nn.parallel import DistributedDataParallel


def find_place() -> None:
    """mpirun and srun have names of their own for what torch calls RANK and WORLD_SIZE."""
    for name, theirs in (("RANK", ("COMM_WORLD_RANK", "PROCID")), ("WORLD_SIZE", ("COMM_WORLD_SIZE", "NTASKS"))):
        told = os.environ.get(f"OMPI_{theirs[0]}", os.environ.get(f"SLURM_{theirs[1]}", ""))
        if told:
            os.environ.setdefault(name, told)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", os.environ.get("FREE_PORT", "29500"))
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        # Torchrun's store still holds the addresses of the first attempt, and gloo may take those.
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": os.environ["FREE_PORT"]}


def train() -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        misbehave(step, rank)
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
    print(f"trained on {rank} of {dist.get_world_size()}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=-1)
    parser.parse_args()
    find_place()
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
