"""Ocean salinity surrogate, two data rows by two tensor-parallel columns."""
import argparse
import logging
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

log = logging.getLogger("ocean")


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Surrogate(nn.Module):
    def __init__(self, dim=16, hidden=32, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Mlp(dim, hidden) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(-1)


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


class Trainer:
    def __init__(self, mesh):
        self.mesh = mesh
        self.row = mesh["data"].get_local_rank()
        self.col = mesh["tensor"].get_local_rank()
        torch.manual_seed(13)
        self.net = Surrogate()
        for layer in self.net.layers:
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.gen = torch.Generator().manual_seed(self.row)  # one row, one data stream
        self.average = None
        self.skipped = 0

    def batch(self):
        x = torch.randn(32, 16, generator=self.gen)
        return x, x[:, 0] * 0.7 - x[:, 1] + 0.2 * self.row

    def reduce(self):
        group = self.mesh["data"].get_group()
        for p in self.net.parameters():
            g = local(p.grad)
            dist.all_reduce(g, group=group)
            g /= self.mesh["data"].size()

    def norm(self):
        total = sum(local(p.grad).square().sum() for p in self.net.parameters()).reshape(1)
        dist.all_reduce(total)
        return total.sqrt().item()

    def step(self, n):
        x, y = self.batch()
        loss = nn.functional.mse_loss(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.reduce()
        if self.norm() > 6.0:
            self.skipped += 1
        else:
            self.opt.step()
        if self.col == 0 and n % 5 == 0:
            # the columns of a row hold the same loss, one of them is enough
            value = loss.detach().clone()
            dist.all_reduce(value, group=self.mesh["data"].get_group())
            value = value.item() / 2
            self.average = value if self.average is None else 0.7 * self.average + 0.3 * value
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=70)
    a = p.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer(init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")))
    for n in range(a.steps):
        loss = t.step(n)
        time.sleep(0.12 if t.row else 0.04)
        if n % 20 == 0:
            log.info("mesh row %d col %d step %d loss %.4f skipped %d", t.row, t.col, n, loss, t.skipped)
    if t.col == 0:
        log.info("row %d average %.4f", t.row, t.average)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
