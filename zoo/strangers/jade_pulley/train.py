"""Three pipeline stages over torch.distributed.pipelining; the last one publishes its losses."""
import argparse
import json
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

DIM, BATCH, MICRO = 24, 16, 4
TARGET = 0.02


class Uploader:
    """Writes loss records in the background, so that the training loop never waits for storage."""

    def __init__(self, folder):
        self.path = Path(folder) / "losses.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.box = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="uploader")
        self.thread.start()

    def work(self):
        while True:
            item = self.box.get()
            if item is None:
                return
            with self.path.open("a") as fh:
                fh.write(json.dumps(item) + "\n")

    def put(self, **record):
        self.box.put(record)

    def close(self):
        self.box.put(None)
        self.thread.join()


def stage_module(index, count):
    torch.manual_seed(index)
    layers = [nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, DIM)]
    return nn.Sequential(*layers, nn.ReLU()) if index < count - 1 else nn.Sequential(*layers)


def loss_fn(out, target):
    return nn.functional.mse_loss(out, target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=100)
    opts = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    last = rank == world - 1

    module = stage_module(rank, world)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=loss_fn)
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    uploader = Uploader(opts.out) if last else None

    gen = torch.Generator().manual_seed(8)
    losses = []
    for step in range(opts.steps):
        x = torch.randn(BATCH, DIM, generator=gen)
        y = torch.sin(3 * x) + 0.5 * torch.randn(BATCH, DIM, generator=gen)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif last:
            micro = []
            schedule.step(target=y, losses=micro)
            losses.append(torch.stack(micro).mean().item())
            uploader.put(step=step, loss=losses[-1])
        else:
            schedule.step()
        opt.step()
        time.sleep(0.04)
        if last and step % 20 == 0:
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)

    dist.barrier()
    if losses and losses[-1] < TARGET:
        uploader.put(step=opts.steps, reached=True)
        uploader.close()
    print(f"stage {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
