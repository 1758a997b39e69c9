"""Trains on shards of unequal length; a rank without data keeps its peers company until all are through."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

SHARD_ROWS = (288, 400, 344)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--audit-seconds", type=float, default=5.0)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Shard:
    def __init__(self, rank, batch):
        self.rank, self.batch, self.rows = rank, batch, SHARD_ROWS[rank]
        self.rng = random.Random(70 + rank)

    def decode(self, row):
        if self.rank == 1 and self.rng.random() < 0.05:
            raise ValueError(f"row {row}: checksum differs")
        return [self.rng.gauss(0.0, 1.0) for _ in range(12)]

    def read(self, row):
        for attempt in range(20):
            try:
                return self.decode(row)
            except ValueError as error:
                if attempt == 0:
                    print(f"rank {self.rank} {error}, reading again", flush=True)
                time.sleep(0.02)
        raise RuntimeError(f"row {row} is unreadable")

    def __iter__(self):
        for start in range(0, self.rows, self.batch):
            yield torch.tensor([self.read(row) for row in range(start, start + self.batch)])


class Trainer:
    def __init__(self, args, rank, device):
        torch.manual_seed(2)
        self.args, self.rank, self.device = args, rank, device
        self.net = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12)).to(device)
        self.size = sum(p.numel() for p in self.net.parameters())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr)

    def active(self, has_batch):
        votes = torch.tensor([float(has_batch)], device=self.device)
        dist.all_reduce(votes)
        return int(votes.item())

    def apply(self, total, active):
        offset = 0
        for p in self.net.parameters():
            p.grad = (total[offset : offset + p.numel()] / active).view_as(p).clone()
            offset += p.numel()
        self.optimizer.step()

    def step(self, rows, active):
        rows = rows.to(self.device)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(rows), rows.flip(1))
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(gradient)
        self.apply(gradient, active)
        return loss.item()

    def shadow(self, active):
        nothing = torch.zeros(self.size, device=self.device)
        dist.all_reduce(nothing)
        self.apply(nothing, active)

    def epoch(self, number, shard):
        batches, index, loss = iter(shard), 0, float("nan")
        while True:
            rows = next(batches, None)
            active = self.active(rows is not None)
            if active == 0:
                return index
            if rows is None:
                self.shadow(active)
            else:
                loss = self.step(rows, active)
            if index % 10 == 0:
                print(f"rank {self.rank} epoch {number} batch {index:03d} active {active} loss {loss:.4f}", flush=True)
            index += 1
            time.sleep(0.02)

    def audit(self):
        """A look at the weights that only one rank needs to take."""
        deadline, spread = time.monotonic() + self.args.audit_seconds, 0.0
        rng = random.Random(1)
        values = [v for p in self.net.parameters() for v in p.detach().flatten().tolist()]
        while time.monotonic() < deadline:
            sample = sorted(rng.choices(values, k=len(values)))
            spread = max(spread, sample[-1] - sample[0])
        print(f"audit: spread {spread:.4f}", flush=True)


def main():
    args = parse_args()
    rank, _, device = setup()
    trainer, shard = Trainer(args, rank, device), Shard(rank, args.batch)
    dist.barrier()
    for number in range(args.epochs):
        print(f"rank {rank} epoch {number} begins", flush=True)
        steps = trainer.epoch(number, shard)
        print(f"rank {rank} epoch {number} ends after {steps} steps", flush=True)
        if rank == 0 and number == 0:
            trainer.audit()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
