import argparse
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HERE = os.path.dirname(os.path.abspath(__file__))


def make_report(history, target):
    proc = subprocess.Popen(
        [sys.executable, os.path.join(HERE, "tools", "report.py"), history],
        stdout=subprocess.PIPE,
        text=True,
    )
    code = proc.wait()
    if code != 0:
        print("report tool failed with", code, flush=True)
        return
    with open(target, "w") as f:
        f.write(proc.stdout.read())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    ap.add_argument("--epochs", type=int, default=8)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(args.out, exist_ok=True)
    history = os.path.join(args.out, "history.jsonl")
    if rank == 0 and os.path.exists(history):
        os.remove(history)

    gen = torch.Generator().manual_seed(0)
    x = torch.randn(6400, 20, generator=gen)
    y = x[:, :3].prod(dim=1, keepdim=True)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    layers = []
    for _ in range(4):
        layers += [nn.Linear(20, 20), nn.Tanh()]
    model = DDP(nn.Sequential(*layers, nn.Linear(20, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        rows = []
        for step, (bx, by) in enumerate(loader):
            loss = (model(bx) - by).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            norms = [p.grad.norm().item() for p in model.parameters()]
            opt.step()
            rows.append({"epoch": epoch, "step": step, "loss": loss.item(), "grad_norms": norms})
            time.sleep(0.005)
        if rank == 0:
            with open(history, "a") as f:
                for row in rows:
                    f.write(json.dumps(row) + "\n")
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
            make_report(history, os.path.join(args.out, f"report-{epoch}.txt"))
        dist.barrier()

    if rank == 0:
        print("all reports written", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
