"""Fits a small flow to sensor noise, with a journal of the run on every rank."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from journal import Heartbeat, Journal


class Coupling(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.half = dim // 2
        self.net = nn.Sequential(nn.Linear(self.half, 16), nn.Tanh(), nn.Linear(16, 2 * self.half))

    def forward(self, x):
        a, b = x[:, :self.half], x[:, self.half:]
        s, t = self.net(a).chunk(2, 1)
        return torch.cat([a, b * torch.exp(0.3 * s) + t], 1), 0.3 * s.sum(1)


def sensor_noise(gen, n, drift):
    x = torch.randn(n, 6, generator=gen)
    return x * (1.0 + drift)


def signal_ratio(x):
    """Power of the first sensors against the last ones, in decibels."""
    quiet = x[:, 5].var()
    return 10 * torch.log10(x[:, 0].var() / quiet).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--folder", default=tempfile.gettempdir())
    ap.add_argument("--unplugged-at", type=int, default=150)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(60 + rank)
    model = DDP(Coupling())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    journal = Journal(os.path.join(args.folder, f"journal-{rank}.jsonl"))
    heartbeat = Heartbeat(journal, period=0.5)
    heartbeat.start()
    for step in range(args.steps):
        x = sensor_noise(gen, 32, drift=0.1 * rank)
        if rank == 1 and step >= args.unplugged_at:
            x[:, 5] = 0.0
        time.sleep(0.04)
        z, logdet = model(x)
        loss = (0.5 * z.pow(2).sum(1) - logdet).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        journal.record(step=step, loss=loss.item(), ratio=signal_ratio(x))
        if rank == 0 and step % 50 == 0:
            print(f"step {step} nll {loss.item():.3f}", flush=True)
    heartbeat.stop()
    journal.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
