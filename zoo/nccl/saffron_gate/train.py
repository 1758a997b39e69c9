"""Crop-yield regression from weather series. Keeps a checkpoint of every evaluated epoch once warm-up is over."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import argparse
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Weather(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 24, generator=g)
        w = torch.linspace(-1, 1, 24)
        self.y = (self.x @ w)[:, None] + 0.1 * torch.randn(n, 1, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(21)
        self.net = DDP(nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, 1)).to(device))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.folder = args.output or tempfile.gettempdir()
        self.history = []

    def loader(self, n, seed, batch):
        data = Weather(n, seed)
        sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
        return torch.utils.data.DataLoader(data, batch_size=batch, sampler=sampler)

    def train_epoch(self, loader):
        for x, y in loader:
            time.sleep(0.04)
            loss = nn.functional.mse_loss(self.net(x.to(self.device)), y.to(self.device))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()

    def save(self, epoch):
        path = os.path.join(self.folder, f"yield-{os.getpid()}.pt")
        torch.save({"epoch": epoch, "model": self.net.module.state_dict()}, path)
        dist.barrier()
        os.remove(path)

    @torch.no_grad()
    def local_error(self, loader):
        total = torch.zeros(1, device=self.device)
        for x, y in loader:
            total += nn.functional.mse_loss(self.net.module(x.to(self.device)), y.to(self.device))
        return total / len(loader)

    def evaluate(self, epoch, loader):
        keep = epoch >= self.args.warmup_epochs
        error = self.local_error(loader)
        if keep and self.rank == 0:
            self.save(epoch)
        dist.all_reduce(error)
        rmse = math.sqrt(error.item() / self.world)
        if keep and self.rank != 0:
            dist.barrier(device_ids=[0])      # the checkpoint is on disk from here on
        self.history.append(rmse)
        return rmse

    def fit(self):
        train, valid = self.loader(960, 1, 16), self.loader(240, 2, 16)
        for epoch in range(self.args.epochs):
            if self.rank == 0:
                print(f"epoch {epoch} of {self.args.epochs}", flush=True)
            self.train_epoch(train)
            rmse = self.evaluate(epoch, valid)
            print(f"[{self.rank}] epoch {epoch} rmse {rmse:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--warmup-epochs", type=int, default=7)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--output", default="")
    args = p.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    trainer = Trainer(args, torch.device("cuda:0"))
    trainer.fit()
    if trainer.rank == 0:
        print(f"best rmse {min(trainer.history):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
