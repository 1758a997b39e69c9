"""Two-stage training: a short first stage, then a second one on a corpus that rank 0 prepares."""

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from corpus import prepare
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train_stage(name, model, optimizer, steps, rank):
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(32, 20)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"{name} step {step} loss {loss.item():.4f}", flush=True)


def prepare_corpus(rank, documents):
    """Rank 0 first, the others use what it left in the cache."""
    if rank == 0:
        print(f"preparing {documents} documents", flush=True)
        prepare(documents)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--timeout", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=36)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    train_stage("stage one", model, optimizer, args.steps, rank)
    prepare_corpus(rank, args.documents)
    train_stage("stage two", model, optimizer, args.steps, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
