"""Population-based training: four members explore, the weak ones copy the strongest."""
import copy
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SEED = 7


@dataclass
class Hyper:
    lr: float
    noise: float

    def mutate(self, gen):
        factor = 0.8 if torch.rand((), generator=gen) < 0.5 else 1.25
        return Hyper(min(max(self.lr * factor, 1e-4), 0.02), self.noise)


@dataclass
class Plan:
    steps: int = 240
    round_every: int = 12
    warmup: int = 60
    dims: int = 10
    batch: int = 16
    holdout: int = 600
    pause: float = 0.035


def spirals(n, gen, dims):
    x = torch.randn(n, dims, generator=gen)
    y = ((x[:, 0] * x[:, 1] + 0.6 * x[:, 2]) > 0).long()
    return x, y


class Member:
    """One candidate: its own model, optimiser and hyper-parameters."""

    def __init__(self, plan, rank):
        self.plan = plan
        self.rank = rank
        self.gen = torch.Generator().manual_seed(100 + 17 * rank)
        self.model = nn.Sequential(nn.Linear(plan.dims, 24), nn.Tanh(), nn.Linear(24, 2))
        self.hyper = Hyper(lr=0.002 * (rank + 1), noise=0.05)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.hyper.lr)
        self.test = spirals(plan.holdout, torch.Generator().manual_seed(9), plan.dims)

    def step(self):
        x, y = spirals(self.plan.batch, self.gen, self.plan.dims)
        x = x + self.hyper.noise * torch.randn(x.shape, generator=self.gen)
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return float(loss.detach())

    @torch.no_grad()
    def score(self):
        x, y = self.test
        return int((self.model(x).argmax(1) == y).sum())

    def adopt(self, flat):
        vector_to_parameters(flat, self.model.parameters())
        self.hyper = self.hyper.mutate(self.gen)
        for group in self.opt.param_groups:
            group["lr"] = self.hyper.lr


class Population:
    def __init__(self, member):
        self.member = member
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.history = []

    def leader(self, scores):
        """Highest score; a member that is as good as the best keeps what it has."""
        return max(range(self.world), key=lambda r: (scores[r], r == self.rank))

    def exchange(self):
        mine = torch.tensor([self.member.score()])
        board = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(board, mine)
        scores = [int(s) for s in board]
        best = self.leader(scores)
        flat = parameters_to_vector(self.member.model.parameters()).detach().clone()
        dist.broadcast(flat, src=best)
        if best != self.rank and scores[self.rank] < scores[best] - 25:
            self.member.adopt(flat)
        self.history.append((best, copy.copy(scores)))
        return best, scores


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, plan = dist.get_rank(), Plan()
    torch.manual_seed(SEED + rank)
    population = Population(Member(plan, rank))
    for step in range(plan.steps):
        if rank == 0:
            print(f"step {step} lr {population.member.hyper.lr:.4f}", flush=True)
        time.sleep(plan.pause)
        population.member.step()
        if step >= plan.warmup and step % plan.round_every == 0:
            best, scores = population.exchange()
            if rank == 0:
                print(f"round led by member {best}: {scores}", flush=True)
    dist.barrier()
    if rank == 0:
        print("rounds", len(population.history), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
