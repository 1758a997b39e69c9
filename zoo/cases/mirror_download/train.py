"""Train, with a second part of the data that rank 0 downloads from a mirror."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from mirror import Mirror, download
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, optimizer, rows, steps):
    for _ in range(steps):
        time.sleep(0.04)
        inputs = rows[torch.randint(len(rows), (16,))]
        loss = (model(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--size", type=int, default=49_152)
    parser.add_argument("--rate", type=float, default=4096)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    path = Path(args.data) / "part-2.bin"
    model = DistributedDataParallel(nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train(model, optimizer, torch.randn(256, 64), 40)
    if rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"downloading {path.name}", flush=True)
        download(Mirror(args.size, args.rate).address, path)
    dist.barrier()
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).reshape(-1, 64)
    loss = train(model, optimizer, rows, 40)
    if rank == 0:
        print(f"loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
