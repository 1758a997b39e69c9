"""Trajectory predictor for pendulum robots, with previews rendered by a command-line tool after each epoch."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Settings:
    epochs: int = 8
    steps: int = 30
    horizon: int = 12
    lr: float = 5e-3
    preview_rows: int = 40


class Predictor(nn.Module):
    def __init__(self, horizon):
        super().__init__()
        self.rnn = nn.GRU(2, 16, batch_first=True)
        self.out = nn.Linear(16, horizon)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.out(h[-1])


def pendulum(batch, horizon, gen):
    phase = torch.rand(batch, 1, generator=gen) * 6.28
    speed = 0.2 + torch.rand(batch, 1, generator=gen)
    t = torch.arange(10 + horizon).float() * 0.1
    angle = torch.sin(phase + speed * t)
    past = torch.stack([angle[:, :10], torch.cos(phase + speed * t)[:, :10]], -1)
    return past, angle[:, 10:]


class Previewer:
    """Renders a few predicted trajectories on the first rank."""

    def __init__(self, rank, rows):
        self.rank, self.rows = rank, rows
        self.log = []

    def on_epoch_end(self, epoch, predicted):
        if self.rank != 0:
            return
        count = self.rows * 2 ** epoch          # later epochs deserve a closer look
        rows = predicted.repeat(count // len(predicted) + 1, 1)[:count].tolist()
        tool = subprocess.Popen([sys.executable, os.path.join(HERE, "render.py")], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for row in rows:
            tool.stdin.write(",".join(f"{v:.5f}" for v in row) + "\n")
        tool.stdin.close()
        code = tool.wait()
        self.log.append((epoch, code, len(tool.stdout.read().splitlines())))
        print(f"epoch {epoch}: rendered {self.log[-1][2]} frames", flush=True)


def sync_gradients(model, world):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat.div_(world)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    cfg = Settings()
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda:0")
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(100 + rank)
    model = Predictor(cfg.horizon).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    callbacks = [Previewer(rank, cfg.preview_rows)]
    for epoch in range(cfg.epochs):
        if rank == 0:
            print(f"epoch {epoch} begins", flush=True)
        for _ in range(cfg.steps):
            past, future = pendulum(16, cfg.horizon, gen)
            time.sleep(0.04)
            loss = nn.functional.mse_loss(model(past.to(device)), future.to(device))
            opt.zero_grad()
            loss.backward()
            sync_gradients(model, world)
            opt.step()
        with torch.no_grad():
            past, _ = pendulum(8, cfg.horizon, gen)
            predicted = model(past.to(device)).cpu()
        for cb in callbacks:
            cb.on_epoch_end(epoch, predicted)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
