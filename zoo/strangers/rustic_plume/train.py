"""Contrastive embedding of herbarium scans, sharded with FSDP2."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Embedder(nn.Module):
    def __init__(self, dim=48, depth=2, out=16):
        super().__init__()
        self.stem = nn.Linear(30, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, out)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def distance(a, b):
    gap = a - b
    return gap.square().sum(-1).sqrt()


def pairs(rank, batch=24):
    """Two views of each scan and an unrelated third one."""
    gen = torch.Generator().manual_seed(17 * rank + 3)
    n = 0
    while True:
        a = torch.randn(batch, 30, generator=gen)
        b = a + 0.1 * torch.randn(batch, 30, generator=gen)
        if rank == 2 and n == 45:
            b[5] = a[5]  # one sheet was scanned once and filed twice
        yield a, b, torch.randn(batch, 30, generator=gen)
        n += 1


def triplet(net, a, b, c, margin=1.0):
    z = net(torch.cat([a, b, c]))
    za, zb, zc = z.chunk(3)
    pos = distance(za, zb)
    neg = distance(za, zc)
    return (pos + torch.relu(margin - neg)).mean()


def build(mesh):
    torch.manual_seed(21)
    net = Embedder()
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = build(init_device_mesh("cpu", (dist.get_world_size(),)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step, (x, y, other) in zip(range(a.steps), pairs(rank)):
        loss = triplet(net, x, y, other)
        if step % 15 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.4f}", flush=True)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
