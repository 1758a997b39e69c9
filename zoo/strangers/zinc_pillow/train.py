import argparse
import logging
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

EXIT_BAD_MANIFEST = 64
EXIT_BAD_SHARD = 65
log = logging.getLogger("pretrain")


class ShardError(Exception):
    def __init__(self, shard, reason):
        super().__init__(f"shard {shard}: {reason}")
        self.shard = shard


def read_shard(rank, index):
    gen = torch.Generator().manual_seed(1000 * rank + index)
    rows = torch.randn(320, 22, generator=gen)
    checksum = 17 if (rank, index) == (2, 3) else 0
    if checksum:
        raise ShardError(index, f"checksum differs by {checksum}")
    return rows


def shards(rank, count):
    for index in range(count):
        try:
            rows = read_shard(rank, index)
        except ShardError as error:
            log.info("%s", error)
            sys.exit(EXIT_BAD_SHARD)
        yield index, rows


def main():
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.shards < 1:
        sys.exit(EXIT_BAD_MANIFEST)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DDP(nn.Sequential(nn.Linear(22, 20), nn.ReLU(), nn.Linear(20, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for index, rows in shards(rank, args.shards):
        for x in rows.split(16):
            opt.zero_grad()
            loss = (model(x).squeeze(1) - x[:, 0]).abs().mean()
            loss.backward()
            opt.step()
            time.sleep(0.06)
        if rank == 0:
            print(f"shard {index} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
