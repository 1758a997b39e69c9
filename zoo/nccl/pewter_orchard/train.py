"""Distils a small regressor; rank 0 owns the teacher and the calibration table."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--calibrate-at", type=int, default=45)
    parser.add_argument("--search-seconds", type=float, default=9.0)
    parser.add_argument("--bins", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), device


class Student:
    def __init__(self, args, rank, device):
        torch.manual_seed(11)
        self.args, self.rank, self.device = args, rank, device
        self.net = nn.Sequential(nn.Linear(16, args.width), nn.Tanh(), nn.Linear(args.width, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr)
        self.noise = torch.Generator(device=device).manual_seed(100 + rank)
        self.table = torch.ones(args.bins, device=device)

    def inputs(self):
        return torch.randn(24, 16, device=self.device, generator=self.noise)

    def teacher_weights(self):
        weights = torch.empty(16, device=self.device)
        dist.broadcast(weights, src=0)
        return weights

    def calibration(self):
        table = torch.empty(self.args.bins, device=self.device)
        dist.broadcast(table, src=0)
        return table

    def contribution(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in self.net.parameters()])

    def exchange(self, loss):
        flat = self.contribution(loss)
        dist.all_reduce(flat)
        return flat / dist.get_world_size()

    def train_step(self):
        x = self.inputs()
        target = torch.tanh(x @ self.teacher_weights()) * self.table.mean()
        loss = nn.functional.mse_loss(self.net(x).squeeze(1), target)
        flat, offset = self.exchange(loss), 0
        for p in self.net.parameters():
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        self.optimizer.step()
        return loss.item()


class Teacher(Student):
    """Drives the run from rank 0: draws weights, searches the calibration, adds a penalty of its own."""

    def __init__(self, args, rank, device):
        super().__init__(args, rank, device)
        self.draw = torch.Generator(device=device).manual_seed(5)

    def teacher_weights(self):
        weights = torch.randn(16, device=self.device, generator=self.draw) * 0.3
        dist.broadcast(weights, src=0)
        return weights

    def calibration(self):
        rng, best, best_score = random.Random(3), None, float("inf")
        deadline = time.monotonic() + self.args.search_seconds
        tried = 0
        while time.monotonic() < deadline:
            candidate = [1.0 + rng.gauss(0.0, 0.1) for _ in range(self.args.bins)]
            score = sum(abs(a - b) for a, b in zip(candidate, candidate[1:]))
            tried += 1
            if score < best_score:
                best, best_score = candidate, score
        print(f"calibration: {tried} candidates, best {best_score:.3f}", flush=True)
        table = torch.tensor(best, device=self.device)
        dist.broadcast(table, src=0)
        return table

    def exchange(self, loss):
        penalty = sum(p.pow(2).sum() for p in self.net.parameters())
        share = self.contribution(loss + 1e-4 * penalty)
        dist.all_reduce(share, op=dist.ReduceOp.SUM)
        return share.div_(dist.get_world_size())


def main():
    args = parse_args()
    rank, device = setup()
    worker = (Teacher if rank == 0 else Student)(args, rank, device)
    dist.barrier()
    for step in range(args.steps):
        if step == args.calibrate_at:
            print(f"rank {rank} step {step:03d} calibrating", flush=True)
            worker.table = worker.calibration()
        loss = worker.train_step()
        time.sleep(0.03)
        if step % 10 == 0:
            print(f"rank {rank} step {step:03d} loss {loss:.4f}", flush=True)
    dist.barrier()
    print(f"rank {rank} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
