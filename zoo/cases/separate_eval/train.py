"""Train; rank 0 evaluates each checkpoint in a process of its own."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, folder, seconds):
    path = Path(folder) / "model.pt"
    torch.save(model.state_dict(), path)
    command = [sys.executable, str(Path(__file__).with_name("evaluate.py")), str(path), str(seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=".")
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        for _ in range(40):
            time.sleep(0.04)
            loss = model(torch.randn(16, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0 and epoch == 0:
            print("evaluating in a separate process", flush=True)
            print(f"score {evaluate(model.module, args.folder, args.seconds):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
