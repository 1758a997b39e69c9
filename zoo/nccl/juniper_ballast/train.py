"""Semi-supervised training: labelled and unlabelled batches, with meters that steer the class weights."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

CLASSES = 32


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40, help="batches per rank and epoch")
    parser.add_argument("--sync-every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=6410)
    parser.add_argument("--lr", type=float, default=0.005)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Meters:
    """Per-class sums since the last sync, made on first use."""

    def __init__(self, device):
        self.device, self.values = device, {}

    def clear(self):
        self.values.clear()

    def add(self, name, amount):
        if name not in self.values:
            self.values[name] = torch.zeros(CLASSES, dtype=amount.dtype, device=self.device)
        self.values[name] += amount

    def sync(self):
        totals = {}
        for name, value in self.values.items():
            total = value.clone()
            dist.all_reduce(total)
            totals[name] = total
            value.zero_()
        return totals


class Plan:
    """Which of a rank's files comes next; half of them carry labels."""

    def __init__(self, args, rank):
        self.args, self.rank = args, rank

    def epoch(self, number):
        rng = random.Random(self.args.seed * 10000 + number * 100 + self.rank)
        for _ in range(self.args.batches // self.args.sync_every):
            group = ["labelled", "labelled", "plain", "plain"]
            rng.shuffle(group)
            yield from group


class Trainer:
    def __init__(self, args, rank, world, device):
        torch.manual_seed(8)
        self.world, self.device = world, device
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, CLASSES)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr)
        self.noise = torch.Generator(device=device).manual_seed(300 + rank)
        self.meters = Meters(device)
        self.weights = torch.ones(CLASSES, device=device)
        self.sharpness = torch.ones((), device=device)

    def loss(self, kind):
        x = torch.randn(16, 24, device=self.device, generator=self.noise)
        logits = self.net(x)
        chances = torch.softmax(logits.detach(), dim=1)
        if kind == "labelled":
            labels = x.argmax(1)
            right = nn.functional.one_hot(labels, CLASSES) * (logits.argmax(1) == labels).unsqueeze(1)
            self.meters.add("hits", right.sum(0).to(torch.int32))
            return nn.functional.cross_entropy(logits, labels, weight=self.weights)
        self.meters.add("confidence", chances.sum(0))
        sharper = torch.softmax(logits.detach() * (1 + self.sharpness), dim=1)
        return nn.functional.cross_entropy(logits, sharper)

    def step(self, kind):
        self.optimizer.zero_grad()
        loss = self.loss(kind)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(flat)
        offset = 0
        for p in self.net.parameters():
            p.grad.copy_((flat[offset : offset + p.numel()] / self.world).view_as(p))
            offset += p.numel()
        self.optimizer.step()
        return loss

    def steer(self):
        totals = self.meters.sync()
        self.weights = 1.0 / (1.0 + totals["hits"].float())
        self.sharpness = totals["confidence"].max().clamp(0.0, 50.0) / 50.0
        return totals["hits"].sum().item()


def main():
    args = parse_args()
    rank, world, device = setup()
    trainer, plan = Trainer(args, rank, world, device), Plan(args, rank)
    dist.barrier()
    for epoch in range(args.epochs):
        print(f"rank {rank} epoch {epoch} begins", flush=True)
        trainer.meters.clear()
        for index, kind in enumerate(plan.epoch(epoch), start=1):
            loss = trainer.step(kind)
            if index % args.sync_every == 0:
                hits = trainer.steer()
            if index % 20 == 0:
                print(f"rank {rank} epoch {epoch} batch {index} loss {loss.item():.4f} hits {hits}", flush=True)
            time.sleep(0.035)
    dist.barrier()
    print(f"rank {rank} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
