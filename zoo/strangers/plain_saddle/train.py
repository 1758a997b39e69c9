"""Saddle fitting: horse measurements in, tree size out. Three pipeline stages, 1F1B."""
import argparse
import csv
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

BATCH, MICRO, SIZES = 12, 3, 6


class ShopServer:
    """Answers most of the time. In stock-taking hours it refuses for a while."""

    def __init__(self):
        self.calls = 0
        self.closed_for = 0

    def measurements(self, step: int) -> torch.Tensor:
        self.calls += 1
        if step == 150 and self.closed_for < 4:
            self.closed_for += 1
            raise ConnectionError("503: stock-taking")
        if self.calls % 61 == 0:
            raise ConnectionError("reset by peer")
        gen = torch.Generator().manual_seed(step)
        return torch.randn(BATCH, 10, generator=gen)


def with_retries(call, *args, tries: int = 6):
    wait = 0.6
    for attempt in range(tries):
        try:
            return call(*args)
        except ConnectionError as e:
            if attempt == tries - 1:
                raise
            if attempt:
                print(f"shop: {e}, again in {wait:.1f} s", flush=True)
                time.sleep(wait)
            wait *= 2
    raise AssertionError


class Heartbeat(threading.Thread):
    def __init__(self, name: str, every: float):
        super().__init__(daemon=True, name=f"heartbeat-{name}")
        self.every, self.stop = every, threading.Event()

    def run(self):
        while not self.stop.wait(self.every):
            print(f"{self.name}: alive", flush=True)


def stage_module(index: int) -> nn.Module:
    return [nn.Sequential(nn.Linear(10, 24), nn.Tanh()),
            nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 24)),
            nn.Sequential(nn.LayerNorm(24), nn.Linear(24, SIZES))][index]


def fitted(step: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 10, generator=gen)
    return ((x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()).clamp(max=SIZES - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--csv", default="/tmp/saddles.csv")
    ap.add_argument("--steps", type=int, default=320)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    module = stage_module(rank)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO, loss_fn=nn.functional.cross_entropy)
    # the ends of the pipe are wide and learn slowly, the middle is fast
    opt = torch.optim.AdamW(module.parameters(), lr=[1e-3, 4e-3, 2e-3][rank])
    print(f"stage {rank} of {world}", flush=True)
    beat = Heartbeat(str(rank), 5.0)
    beat.start()

    shop = ShopServer()
    log = open(args.csv, "w", newline="") if rank == world - 1 else None
    writer = csv.writer(log) if log else None
    for step in range(args.steps):
        opt.zero_grad()
        if rank == 0:
            x = with_retries(shop.measurements, step)
            time.sleep(0.02)
            schedule.step(x)
        elif rank < world - 1:
            schedule.step()
        else:
            losses = []
            logits = schedule.step(target=fitted(step), losses=losses)
            hits = (logits.argmax(1) == fitted(step)).float().mean().item()
            writer.writerow([step, f"{torch.stack(losses).mean().item():.4f}", f"{hits:.3f}"])
            if step % 80 == 0:
                log.flush()
                time.sleep(1.0)  # plots
                print(f"step {step}: fits {hits:.2f}", flush=True)
        if rank != 1 or step % 2 == 0:  # the middle stage is updated every other step
            opt.step()

    beat.stop.set()
    if log:
        log.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
