"""Wind-power forecast: GRU over turbine telemetry, metrics go to a local board."""
import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = Path(__file__).resolve().parent


class Board:
    """Metric board in a process of its own, so that slow disks do not slow training."""

    def __init__(self, path):
        self.proc = subprocess.Popen(
            [sys.executable, str(HERE / "board_worker.py"), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, step, record):
        line = json.dumps({"step": step, **record}) + "\n"
        self.proc.stdin.write(line)
        self.proc.stdin.flush()

    def close(self):
        self.proc.communicate(timeout=20)


class NoBoard:
    def send(self, step, record):
        pass

    def close(self):
        pass


class Forecaster(nn.Module):
    def __init__(self, features=10, hidden=24):
        super().__init__()
        self.cell = nn.GRU(features, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.cell(x)[0][:, -1]).squeeze(-1)


def telemetry(rank, batch=24, steps=12, features=10):
    gen = torch.Generator().manual_seed(900 + rank)
    while True:
        x = torch.randn(batch, steps, features, generator=gen)
        yield x, x[:, -3:, 0].mean(1) * 2 + 0.3


def gradient_histograms(model):
    return {
        name: [round(v, 5) for v in torch.histc(p.grad, 48).tolist()]
        for name, p in model.named_parameters()
    }


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=300)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    with closing(Board(a.out) if rank == 0 else NoBoard()) as board:
        for step, (x, y) in zip(range(a.steps), telemetry(rank)):
            t0 = time.perf_counter()
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.1)
            record = {"loss": loss.item(), "sec": round(time.perf_counter() - t0, 4)}
            if rank == 0:
                record["hist"] = gradient_histograms(model)
            if step % 20 == 0 and rank == 0:
                print(f"step {step} | mse {loss.item():.4f}", flush=True)
            board.send(step, record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
