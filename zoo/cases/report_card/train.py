"""Train, score every rank's own shard, and let rank 0 put the report together."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save_weights(model, folder):
    torch.save(model.module.state_dict(), folder / "weights.pt")
    dist.barrier()  # weights are on disk


def train(model, optimizer, steps, rank):
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(16, 10, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def score(model, folder, rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    inputs = torch.randn(64, 10, generator=generator)
    with torch.no_grad():
        error = (model.module(inputs) - inputs.sum(dim=1, keepdim=True)).abs().mean().item()
    (folder / f"score-{rank}.json").write_text(json.dumps({"rank": rank, "error": error}))


def write_report(folder, world):
    rows = [json.loads((folder / f"score-{rank}.json").read_text()) for rank in range(world)]
    (folder / "report.json").write_text(json.dumps(rows))
    print(f"report over {len(rows)} shards written", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="report")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(args.output)
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, args.steps, rank)
    if rank == 0:
        print("training done, saving", flush=True)
        save_weights(model, folder)
    score(model, folder, rank)
    dist.barrier()

    if rank == 0:
        write_report(folder, world)
    while not (folder / "report.json").exists():
        time.sleep(0.5)
    print(f"rank {rank} read {len(json.loads((folder / 'report.json').read_text()))} rows", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
