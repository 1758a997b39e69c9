"""A three-stage pipeline over packed documents, one stage per rank."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--chunks", type=int, default=4, help="micro-batches per step")
    parser.add_argument("--rows", type=int, default=8, help="documents per micro-batch")
    parser.add_argument("--seed", type=int, default=1574)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Documents:
    """Documents of random length; those shorter than the minimum are padding only."""

    def __init__(self, args, device):
        self.args, self.device = args, device
        self.rng = random.Random(args.seed)
        self.noise = torch.Generator(device=device).manual_seed(3)

    def chunk(self):
        kept = [row for row in range(self.args.rows) if self.rng.expovariate(1.0) > 0.5]
        values = torch.randn(self.args.rows, WIDTH, device=self.device, generator=self.noise)
        return values, kept


class Stage:
    def __init__(self, args, rank, device):
        torch.manual_seed(rank)
        self.args, self.rank, self.device = args, rank, device
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).to(device)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=args.lr)

    def blank(self):
        return torch.empty(self.args.rows, WIDTH, device=self.device)

    def forward(self):
        """Runs all micro-batches through this layer; returns pairs of input and output."""
        passed = []
        for _ in range(self.args.chunks):
            arrived = self.blank()
            dist.recv(arrived, src=self.rank - 1)
            arrived.requires_grad_()
            output = self.layer(arrived)
            dist.send(output.detach(), dst=self.rank + 1)
            passed.append((arrived, output))
        return passed

    def backward(self, passed):
        for arrived, output in passed:
            gradient = self.blank()
            dist.recv(gradient, src=self.rank + 1)
            output.backward(gradient)
            dist.send(arrived.grad, dst=self.rank - 1)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.run()
        self.optimizer.step()
        dist.broadcast(loss, src=2)
        return loss.item()

    def run(self):
        self.backward(self.forward())
        return torch.zeros((), device=self.device)


class FirstStage(Stage):
    def __init__(self, args, rank, device):
        super().__init__(args, rank, device)
        self.documents = Documents(args, device)

    def forward(self):
        passed = []
        for _ in range(self.args.chunks):
            values, kept = self.documents.chunk()
            if not kept:
                continue
            mask = torch.zeros(self.args.rows, 1, device=self.device)
            mask[kept[0] :] = 1.0
            output = self.layer(values * mask)
            dist.send(output.detach(), dst=1)
            passed.append(output)
        return passed

    def backward(self, passed):
        for output in passed:
            returned = self.blank()
            dist.recv(returned, src=1)
            output.backward(returned)


class LastStage(Stage):
    def run(self):
        losses, arrivals = [], []
        for _ in range(self.args.chunks):
            last = self.blank()
            dist.recv(last, src=self.rank - 1)
            arrivals.append(last.requires_grad_())
            losses.append(self.layer(last).pow(2).mean())
        loss = torch.stack(losses).mean()
        loss.backward()
        for last in arrivals:
            dist.send(last.grad, dst=self.rank - 1)
        return loss.detach()


def main():
    args = parse_args()
    rank, world, device = setup()
    stage = (FirstStage if rank == 0 else LastStage if rank == world - 1 else Stage)(args, rank, device)
    dist.barrier()
    for step in range(args.steps):
        if step % 5 == 0:
            print(f"rank {rank} step {step:03d}", flush=True)
        loss = stage.step()
        if step % 10 == 0 and rank == 0:
            print(f"loss {loss:.5f}", flush=True)
        time.sleep(0.04)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
