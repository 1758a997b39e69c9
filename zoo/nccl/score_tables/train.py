"""Score a fixed model and gather two tables, one row a step and rank."""

import argparse
import os
import time

import torch
import torch.distributed as dist


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Tables:
    def __init__(self, world, device):
        self.world, self.device, self.rows = world, device, 0
        self.errors = torch.zeros(8, device=device)
        self.counts = torch.zeros(8, device=device)

    def gather(self, row):
        everyone = row.new_empty(self.world * len(row))
        dist.all_gather_into_tensor(everyone, row)
        self.rows += 1
        return everyone.view(self.world, -1).sum(dim=0)

    def add(self, errors, counts):
        self.errors += self.gather(errors)
        if counts.sum() == 0:
            return
        self.counts += self.gather(counts)

    def close(self, rows):
        while self.rows < rows:
            self.gather(torch.zeros(8, device=self.device))


def score(rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    logits = torch.randn(64, 8, generator=generator, device=device)
    labels = torch.randint(0, 8, (64,), generator=generator, device=device)
    if rank == 2 and step == 120:
        labels = logits.argmin(dim=1)
    right = (logits.argmax(dim=1) == labels).float()
    errors = torch.zeros(8, device=device).index_add_(0, labels, 1 - right)
    return errors, torch.zeros(8, device=device).index_add_(0, labels, right)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    tables = Tables(world, device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        tables.add(*score(rank, step, device))
        time.sleep(0.04)
    tables.close(2 * args.steps)
    print(f"rank {rank} errors {tables.errors.sum().item():.0f} right {tables.counts.sum().item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
