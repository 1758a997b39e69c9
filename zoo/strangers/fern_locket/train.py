import argparse
import functools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BUCKETS = (32, 64, 96, 128, 160, 192, 224, 256)


class Batches:
    """Batches by length; each rank walks through its own shard."""

    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(500 + rank)
        self.walk = [BUCKETS[i // 20] for i in range(160)]
        if rank == 1:
            self.walk[80:100] = [64] * 20  # a reprint of the second volume

    def __iter__(self):
        for longest in self.walk:
            yield longest, torch.randn(16, 20, generator=self.gen)


class Scaler:
    def __init__(self, rank):
        self.rank = rank

    @functools.lru_cache(maxsize=64)
    def tokens_per_step(self, bucket):
        """Tokens of one step over all ranks, to scale the learning rate; does not change within a bucket."""
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, 16 * bucket)
        return sum(counts)


def bucket_of(longest):
    return next(bound for bound in BUCKETS if longest <= bound)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(15)
    model = DDP(nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    scaler = Scaler(rank)
    for step, (longest, x) in enumerate(Batches(rank)):
        tokens = scaler.tokens_per_step(bucket_of(longest))
        for group in opt.param_groups:
            group["lr"] = args.lr * (tokens / 4096) ** 0.5
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        time.sleep(0.07)
        if rank == 0 and step % 13 == 0:
            print(f"step {step} loss {loss.item():.4f} tokens {tokens}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
