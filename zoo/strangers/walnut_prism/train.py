"""Three-stage pipeline for protein contact scores: embed -> mix -> score, micro-batches by point-to-point messages."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn


@dataclass(frozen=True)
class Plan:
    steps: int = 150
    micro: int = 4
    rows: int = 6
    width: int = 16
    low_signal: float = 0.35


class Stage:
    def __init__(self, plan, rank, world):
        torch.manual_seed(30 + rank)
        self.plan, self.rank, self.world = plan, rank, world
        self.net = nn.Sequential(nn.Linear(plan.width, plan.width), nn.Tanh())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.saved = []

    def receive(self, src):
        buf = torch.empty(self.plan.rows, self.plan.width)
        dist.recv(buf, src=src)
        return buf

    @property
    def last(self):
        return self.rank == self.world - 1


class Source(Stage):
    def __init__(self, plan, rank, world):
        super().__init__(plan, rank, world)
        self.gen = torch.Generator().manual_seed(12)

    def forward_micro(self, step, index):
        time.sleep(0.012)
        x = torch.randn(self.plan.rows, self.plan.width, generator=self.gen)
        if step == 97 and index == 2:
            x = x * 0.004                   # a very short chain, mostly padding
        y = self.net(x)
        self.saved.append(y)
        dist.send(y.detach(), dst=self.rank + 1)

    def backward_micro(self, y):
        y.backward(self.receive(self.rank + 1))


class Mixer(Stage):
    def __init__(self, plan, rank, world):
        super().__init__(plan, rank, world)
        with torch.no_grad():
            self.net[0].bias.zero_()
        self.quiet = 0

    def forward_micro(self, step, index):
        x = self.receive(self.rank - 1).requires_grad_()
        y = self.net(x - x.mean(0))
        self.saved.append((x, y))
        mixed = y.detach()
        if mixed.abs().max() < self.plan.low_signal:
            self.quiet += 1
            return
        dist.send(mixed, dst=self.rank + 1)

    def backward_micro(self, pair):
        x, y = pair
        upstream = self.receive(self.rank + 1)
        y.backward(upstream)
        dist.send(x.grad, dst=self.rank - 1)


class Scorer(Stage):
    def __init__(self, plan, rank, world):
        super().__init__(plan, rank, world)
        self.total = 0.0

    def forward_micro(self, step, index):
        x = self.receive(self.rank - 1).requires_grad_()
        loss = (self.net(x) - 0.5).pow(2).mean()
        self.total += loss.item()
        self.saved.append((x, loss))

    def backward_micro(self, pair):
        x, loss = pair
        loss.backward()
        dist.send(x.grad, dst=self.rank - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    plan = Plan()
    kinds = {0: Source, world - 1: Scorer}
    stage = kinds.get(rank, Mixer)(plan, rank, world)
    for step in range(plan.steps):
        if rank == 0 and step % 10 == 7:
            print(f"pipeline step {step}", flush=True)
        stage.saved.clear()
        stage.opt.zero_grad()
        for index in range(plan.micro):
            stage.forward_micro(step, index)
        for item in stage.saved:
            stage.backward_micro(item)
        stage.opt.step()
        if stage.last and step % 25 == 24:
            print(f"step {step} loss {stage.total / (25 * plan.micro):.4f}", flush=True)
            stage.total = 0.0
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
