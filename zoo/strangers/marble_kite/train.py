"""Pollen grain classifier with a small trainer class and hooks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RunningMean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def push(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def value(self):
        """Mean over everything that was pushed anywhere."""
        pair = torch.tensor([self.total, float(self.count)])
        dist.all_reduce(pair)
        return (pair[0] / pair[1].clamp(min=1)).item()

    @property
    def local(self):
        return self.total / max(self.count, 1)


class ConsoleHook:
    def __init__(self, every):
        self.every = every

    def after_step(self, t):
        if t.rank == 0 and t.step % self.every == 0:
            print(f"step {t.step:4d}  loss {t.loss_mean.local:.4f}  lr {t.opt.param_groups[0]['lr']:.4f}", flush=True)


class PlateauHook:
    """Says so when accuracy does not move any more."""

    def __init__(self, patience, tolerance):
        self.patience, self.tolerance, self.best, self.bad = patience, tolerance, 0.0, 0

    def after_step(self, t):
        if t.step % 10:
            return
        if t.accuracy.local > self.best + self.tolerance:
            self.best, self.bad = t.accuracy.local, 0
        else:
            self.bad += 1
        if self.bad == self.patience and t.rank == 0:
            print(f"step {t.step}: accuracy seems settled", flush=True)
            print(f"overall accuracy {t.accuracy.value:.3f}", flush=True)


class Trainer:
    def __init__(self, args):
        self.rank, self.step = dist.get_rank(), 0
        torch.manual_seed(9)
        self.centers = torch.randn(5, 18)
        net = nn.Sequential(nn.Linear(18, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
        self.model = DDP(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.gen = torch.Generator().manual_seed(50 + self.rank)
        self.loss_mean, self.accuracy = RunningMean(), RunningMean()
        self.hooks = [ConsoleHook(25), PlateauHook(args.patience, args.tolerance)]

    def batch(self, n=24):
        y = torch.randint(5, (n,), generator=self.gen)
        return self.centers[y] + 0.8 * torch.randn(n, 18, generator=self.gen), y

    def train(self, steps):
        self.model.train()
        while self.step < steps:
            x, y = self.batch()
            time.sleep(0.04)
            logits = self.model(x)
            loss = nn.functional.cross_entropy(logits, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.loss_mean.push(loss.item())
            self.accuracy.push((logits.argmax(1) == y).float().mean().item(), len(y))
            self.step += 1
            for hook in self.hooks:
                hook.after_step(self)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--patience", type=int, default=3)
    p.add_argument("--tolerance", type=float, default=0.004)
    args = p.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.train(args.steps)
    if trainer.rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
