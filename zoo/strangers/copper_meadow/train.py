import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from export import write_export

SHARD_ROWS = [1920, 1600, 2176]


def shard(rank):
    g = torch.Generator().manual_seed(50 + rank)
    n = SHARD_ROWS[rank % len(SHARD_ROWS)]
    x = torch.randn(n, 40, generator=g)
    y = (x[:, :3].sum(1) > 0).long()
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp/copper")
    ap.add_argument("--bank-mb", type=int, default=28)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    x, y = shard(rank)

    for epoch in range(2):
        perm = torch.randperm(len(x))
        seen = 0
        with Join([net]):
            for idx in perm.split(32):
                loss = loss_fn(net(x[idx]), y[idx])
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += len(idx)
                time.sleep(0.03)
        count = torch.tensor([seen])
        dist.all_reduce(count)
        if rank == 0:
            print(f"epoch {epoch} finished, {count.item()} samples, loss {loss.item():.3f}", flush=True)

    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        bank = torch.randint(0, 256, (args.bank_mb << 20,), dtype=torch.uint8)
        raw, packed, took = write_export(net.module.state_dict(), os.path.join(args.out, "export.xz"), bank)
        print(f"export {raw >> 20} MiB -> {packed >> 20} MiB in {took:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
