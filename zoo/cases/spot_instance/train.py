"""Train on machines that may be taken away: the notice is a signal, and a checkpoint is written in time."""

import argparse
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Notice:
    def __init__(self):
        self.given = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number, frame):
        self.given = True


def save(model, folder, rank, step):
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict()}, Path(folder) / f"rank-{rank}.pt")


def train(model, optimizer, args, rank, notice):
    for step in range(args.steps):
        if notice.given:
            save(model.module, args.output, rank, step)
            print(f"rank {rank} saved step {step} and leaves", flush=True)
            return
        time.sleep(0.05)
        inputs = torch.randn(32, 12)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    notice = Notice()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, args, rank, notice)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
