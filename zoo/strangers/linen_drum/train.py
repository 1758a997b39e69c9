"""House-price regression per district, learning rate lowered when validation stops improving."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau


class District:
    """Training batches and a fixed validation set of one district."""

    def __init__(self, rank, noise):
        self.gen = torch.Generator().manual_seed(200 + rank)
        self.noise = noise
        self.w = torch.linspace(-1.0, 1.0, 9)
        self.val = self.sample(64)

    def sample(self, n):
        x = torch.randn(n, 9, generator=self.gen)
        y = x @ self.w + self.noise * torch.randn(n, generator=self.gen)
        return x, y[:, None]


class Fit:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(31)
        self.model = DDP(nn.Sequential(nn.Linear(9, 24), nn.GELU(), nn.Linear(24, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr)
        self.plateau = ReduceLROnPlateau(self.opt, factor=0.3, patience=args.patience, threshold=args.threshold)
        self.district = District(self.rank, noise=args.noise[self.rank])

    def train_epoch(self):
        for _ in range(self.args.batches):
            x, y = self.district.sample(16)
            time.sleep(0.04)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.district.val
        error = nn.functional.mse_loss(self.model.module(x), y)
        self.model.train()
        return error.item()

    def run(self):
        for epoch in range(self.args.epochs):
            print(f"[{self.rank}] epoch {epoch} lr {self.opt.param_groups[0]['lr']:.5f}", flush=True)
            self.train_epoch()
            error = self.validate()
            self.plateau.step(error)
            shown = torch.tensor([error])
            dist.all_reduce(shown)
            if self.rank == 0:
                print(f"epoch {epoch}: validation error {shown.item() / self.world:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--batches", type=int, default=30)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--patience", type=int, default=1)
    ap.add_argument("--threshold", type=float, default=0.02)
    ap.add_argument("--noise", type=float, nargs="+", default=[0.05, 0.05, 1.5])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    Fit(args).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
