"""Electricity demand model cut in three pipeline stages."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

HOURS, DIM, MICRO = 24, 32, 4


def stage_module(index):
    torch.manual_seed(40 + index)
    if index == 0:
        return nn.Sequential(nn.Linear(HOURS, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
    if index == 1:
        return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM), nn.Tanh())
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1))


def upper_cut(values, share=0.1, width=1e-6):
    """Level above which only the given share of the values lies."""
    lo, hi = values.min(), values.max()
    while hi - lo > width:
        mid = (lo + hi) / 2
        if (values > mid).float().mean() > share:
            lo = mid
        else:
            hi = mid
    return hi


def trimmed_loss(pred, target):
    err = pred.squeeze(-1) - target
    cut = upper_cut(err.detach().abs())
    return err.clamp(-cut, cut).square().mean()


def demand(step, batch=16):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(batch, HOURS, generator=gen)
    y = x[:, -4:].mean(1)
    if step >= 40:  # the cold spell, in MW above the seasonal mean
        y = y + 5000.0 + 400.0 * torch.rand(batch, generator=gen)
    return x, y


class PipelineTrainer:
    def __init__(self, rank, world):
        self.rank, self.last = rank, rank == world - 1
        self.module = stage_module(rank)
        self.stage = PipelineStage(self.module, rank, world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(self.stage, n_microbatches=MICRO, loss_fn=trimmed_loss)
        self.opt = torch.optim.Adam(self.module.parameters(), lr=1e-3)

    def step(self, step):
        x, y = demand(step)
        losses = []
        self.opt.zero_grad()
        if self.rank == 0:
            self.schedule.step(x)
        elif self.last:
            self.schedule.step(target=y, losses=losses)
        else:
            self.schedule.step()
        self.opt.step()
        return sum(v.item() for v in losses) / MICRO if losses else None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainer = PipelineTrainer(rank, world)
    for step in range(a.steps):
        if step % 10 == 0:
            print(f"stage {rank} step {step} start", flush=True)
        loss = trainer.step(step)
        if loss is not None and step % 10 == 9:
            print(f"step {step} trimmed mse {loss:.4f}", flush=True)
        time.sleep(0.1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
