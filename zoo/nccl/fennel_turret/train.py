"""Mixture-of-experts toy: dense gradients over all ranks, routing tables over each pair of ranks."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

EXPERTS = 64


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=256, help="tokens per rank and step")
    parser.add_argument("--capacity", type=int, default=170, help="rows that a routing table may hold")
    parser.add_argument("--seed", type=int, default=4045)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def pair_group(rank, world):
    mine = None
    for first in range(0, world, 2):
        group = dist.new_group([first, first + 1])
        if first <= rank <= first + 1:
            mine = group
    return mine


class RoutingTable:
    """Loads of the experts, shared with the rank that holds the other half of them."""

    def __init__(self, capacity, group, device):
        self.capacity, self.group = capacity, group
        self.rows = 0
        self.load = torch.zeros(EXPERTS, device=device)
        self.shared = torch.zeros(EXPERTS, device=device)

    def record(self, load, rows):
        self.load += load
        self.rows += rows
        if self.rows > self.capacity:
            self.publish()

    def publish(self):
        dist.all_reduce(self.load, group=self.group)
        self.shared = 0.9 * self.shared + 0.1 * self.load
        self.load = torch.zeros_like(self.load)
        self.rows = 0

    def close_step(self):
        if self.rows:
            self.publish()


class Router:
    """Decides how many tokens go to the experts at all; the rest takes the dense path."""

    def __init__(self, args, rank):
        self.tokens = args.tokens
        self.rng = random.Random(args.seed * 100 + rank)

    def routed(self):
        return sum(self.rng.random() < 0.55 for _ in range(self.tokens))


class Trainer:
    def __init__(self, args, rank, world, device):
        torch.manual_seed(6)
        self.world, self.device, self.tokens = world, device, args.tokens
        self.gate = nn.Linear(24, EXPERTS).to(device)
        self.dense = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24)).to(device)
        self.parameters = [*self.gate.parameters(), *self.dense.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=args.lr)
        self.router = Router(args, rank)
        self.table = RoutingTable(args.capacity, pair_group(rank, world), device)
        self.noise = torch.Generator(device=device).manual_seed(50 + rank)

    def losses(self):
        x = torch.randn(self.tokens, 24, device=self.device, generator=self.noise)
        rows = self.router.routed()
        chances = torch.softmax(self.gate(x[:rows]), dim=1)
        self.table.record(chances.detach().sum(0), rows)
        spread = (chances.mean(0) * self.table.shared).sum() / self.tokens
        return nn.functional.mse_loss(self.dense(x), x.flip(1)) + spread

    def step(self):
        self.optimizer.zero_grad()
        loss = self.losses()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(flat)
        offset = 0
        for p in self.parameters:
            p.grad.copy_((flat[offset : offset + p.numel()] / self.world).view_as(p))
            offset += p.numel()
        self.optimizer.step()
        self.table.close_step()
        return loss.detach()


def main():
    args = parse_args()
    rank, world, device = setup()
    trainer = Trainer(args, rank, world, device)
    dist.barrier()
    for step in range(args.steps):
        if step % 5 == 0:
            print(f"rank {rank} begins step {step:03d}", flush=True)
        loss = trainer.step()
        time.sleep(0.05)
        if step % 5 == 4:
            print(f"rank {rank} loss {loss.item():.4f} at step {step:03d}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
