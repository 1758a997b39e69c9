import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F

from dashboard import DashboardPipe


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


def build(rank, world, dim, classes):
    layers = [Block(dim), Block(dim)]
    if rank == 0:
        layers.insert(0, nn.Linear(32, dim))
    if rank == world - 1:
        layers.append(nn.Linear(dim, classes))
    return nn.Sequential(*layers)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run-dir", default="runs/pipe")
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--microbatches", type=int, default=4)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    torch.manual_seed(rank)
    module = build(rank, world, dim=192, classes=10)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, args.microbatches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    dashboard = DashboardPipe(args.run_dir) if last else None

    data = torch.Generator().manual_seed(99)
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 32, generator=data)
        y = x[:, :10].argmax(-1)
        optimizer.zero_grad()
        if first:
            schedule.step(x)
        elif last:
            losses = []
            schedule.step(target=y, losses=losses)
            loss = torch.stack([v.detach() for v in losses]).mean().item()
        else:
            schedule.step()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        if last and step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if last and step % 25 == 0:
            dashboard.send(step=step, loss=loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
