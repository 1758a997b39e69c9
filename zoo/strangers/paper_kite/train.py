import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = os.path.dirname(os.path.abspath(__file__))
READER = 1


def wait_for(path, interval=0.5, limit=300):
    deadline = time.time() + limit
    while not os.path.exists(path):
        if time.time() > deadline:
            raise TimeoutError(path)
        time.sleep(interval)


def train(model, opt, gen, steps, negatives=None):
    for step in range(steps):
        x = torch.randn(16, 8, generator=gen)
        if negatives is not None:
            x = x + negatives[step % len(negatives)] * 1e-3
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
    return loss.item()


def main():
    workdir = sys.argv[1]
    os.makedirs(workdir, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 8))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    loss = train(model, opt, gen, 30)
    if rank == 0:
        print(f"warm-up loss {loss:.4f}", flush=True)

    path = os.path.join(workdir, "index.json")
    builder = None
    if rank == 0:
        builder = subprocess.Popen([sys.executable, os.path.join(HERE, "build_index.py"), path, "15"])

    payload = [None]
    if rank == READER:
        wait_for(path)
        with open(path) as f:
            payload = [json.load(f)]
    dist.broadcast_object_list(payload, src=READER)
    negatives = torch.tensor([row[0] for row in payload[0].values()], dtype=torch.float32)

    loss = train(model, opt, gen, 40, negatives)
    if rank == 0:
        builder.wait()
        print(f"final loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
