import argparse
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from ledger import Ledger

WIDTH = 24


def part(index, count):
    torch.manual_seed(30 + index)
    body = [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*body, nn.Linear(WIDTH, 4)) if index == count - 1 else nn.Sequential(*body)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.workdir.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    module = part(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    ledger = Ledger(args.workdir / "ledger.csv") if rank == world - 1 else None
    gen = torch.Generator().manual_seed(77)
    for step in range(1, args.steps + 1):
        x = torch.randn(32, WIDTH, generator=gen)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            losses = []
            schedule.step(target=x[:, :4].argmax(1), losses=losses)
            ledger.append(step, torch.stack([loss.detach() for loss in losses]).mean().item())
        else:
            schedule.step()
        optimizer.step()
        time.sleep(0.03)
        if ledger and step % 60 == 0:
            print(f"step {step}: {ledger.rows} rows in the ledger", flush=True)
            ledger.snapshot()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
