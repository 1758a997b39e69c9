import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

DIM, CLASSES = 128, 50


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, DIM)
        self.ff = nn.Sequential(nn.ReLU(), nn.Linear(DIM, DIM))

    def forward(self, x):
        return self.ff(self.proj(x))


class MiddleStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        return x + self.ff(x)


class LastStage(nn.Module):
    """Adaptive refinement head; by far the heaviest part of the net."""

    def __init__(self, refinements):
        super().__init__()
        self.refine = nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)
        self.refinements = refinements

    def forward(self, x):
        for _ in range(self.refinements):
            x = self.norm(x + torch.tanh(self.refine(x)))
        return self.head(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=30)
    ap.add_argument("--refinements", type=int, default=250)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 3, "three stages"
    torch.manual_seed(rank)
    module = [FirstStage, MiddleStage, lambda: LastStage(args.refinements)][rank]()
    device = torch.device("cpu")
    stage = PipelineStage(module, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=6, loss_fn=F.cross_entropy)
    opt = torch.optim.SGD(module.parameters(), lr=0.05)

    gen = torch.Generator().manual_seed(17)
    centers = torch.randn(CLASSES, 64, generator=gen)
    t0 = time.time()
    for it in range(args.iters):
        y = torch.randint(0, CLASSES, (96,), generator=gen)
        x = centers[y] + 0.3 * torch.randn(96, 64, generator=gen)
        opt.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        opt.step()
        if losses and it % 5 == 0:
            mean = torch.stack(losses).mean().item()
            print(f"iter {it} loss {mean:.3f} ({time.time() - t0:.1f}s)", flush=True)
    dist.barrier()
    if rank == 0:
        print("pipeline run complete", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
