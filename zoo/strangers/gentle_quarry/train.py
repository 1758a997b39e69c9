"""Three-stage pipeline (GPipe schedule) over a residual MLP."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from cluster.preempt import Preemption

DIM, MICRO, BATCH = 32, 4, 32


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


def build_stage(rank, world):
    torch.manual_seed(21 + rank)
    layers = [ResBlock(DIM) for _ in range(2)]
    if rank == world - 1:
        layers.append(nn.Linear(DIM, 4))
    return nn.Sequential(*layers)


def batch(step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, DIM, generator=gen)
    return x, (x[:, :4] * 3).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt", default="/tmp")
    ap.add_argument("--steps", type=int, default=4000)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = build_stage(rank, world)
    example = torch.randn(BATCH // MICRO, DIM)
    stage = PipelineStage(module, rank, world, torch.device("cpu"), input_args=(example,))
    schedule = ScheduleGPipe(stage, MICRO, loss_fn=F.cross_entropy)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    preempt = Preemption(module, args.ckpt, rank)

    for step in range(1, args.steps + 1):
        x, y = batch(step)
        opt.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        opt.step()
        if rank == world - 1 and step % 20 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
        preempt.check(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
