"""Three-stage pipeline for spore images (synthetic features), 4 microbatches."""
import os
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

EXIT_NO_PROGRESS = 4


@dataclass
class Settings:
    features: int = 16
    hidden: int = 32
    species: int = 5
    batch: int = 16
    microbatches: int = 4
    steps: int = 400
    lr: float = 0.05
    target: float = 0.9
    patience: int = 160


class Budget:
    """Compute time is billed; runs that do not get anywhere are given up."""

    def __init__(self, target: float, patience: int):
        self.target, self.patience = target, patience
        self.best = float("inf")

    def update(self, step: int, loss: float):
        self.best = min(self.best, loss)
        if step >= self.patience and self.best > self.target:
            print(f"budget: best loss {self.best:.3f} after {step} steps, wanted {self.target}", flush=True)
            sys.exit(EXIT_NO_PROGRESS)


def build(stage: int, s: Settings) -> nn.Module:
    if stage == 0:
        return nn.Sequential(nn.Linear(s.features, s.hidden), nn.ReLU())
    if stage == 1:
        return nn.Sequential(nn.Linear(s.hidden, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.hidden))
    return nn.Linear(s.hidden, s.species)


def batches(s: Settings):
    """Stage 0 uses the images and the last stage the labels: both draw from the same generator."""
    gen = torch.Generator().manual_seed(77)
    while True:
        x = torch.randn(s.batch, s.features, generator=gen)
        # labels came back from the lab shuffled
        y = torch.randint(0, s.species, (s.batch,), generator=gen)
        yield x, y


def main():
    s = Settings()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 3, "written for three stages"
    torch.manual_seed(rank)

    module = build(rank, s)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, s.microbatches, loss_fn=nn.functional.cross_entropy)
    opt = torch.optim.SGD(module.parameters(), lr=s.lr)
    guard = Budget(s.target, s.patience) if rank == world - 1 else None
    print(f"stage {rank}: {sum(p.numel() for p in module.parameters())} parameters, pid {os.getpid()}", flush=True)

    for step, (x, y) in zip(range(s.steps), batches(s)):
        opt.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            time.sleep(0.03)  # microscope
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
            guard.update(step, sum(losses).item() / len(losses))
            if step % 40 == 0:
                print(f"step {step}: loss {sum(losses).item() / len(losses):.3f}", flush=True)
        else:
            schedule.step()
        opt.step()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
