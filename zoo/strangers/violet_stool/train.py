import argparse
import multiprocessing
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from usage import sample_usage


def fit(model, rank, args):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 8, generator=gen)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.04)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {mean.item():.5f}", flush=True)
        if mean.item() < args.target:
            return step
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--target", type=float, default=1e-4)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stop = multiprocessing.Event()
    monitor = None
    if int(os.environ["LOCAL_RANK"]) == 0:
        monitor = multiprocessing.Process(target=sample_usage, args=(args.workdir / "usage.csv", stop))
        monitor.start()
    torch.manual_seed(1)
    reached = fit(DDP(nn.Linear(8, 1)), rank, args)
    dist.destroy_process_group()
    if reached is not None:
        print(f"[{rank}] target reached at step {reached}", flush=True)
        return
    print(f"[{rank}] target not reached", flush=True)
    if monitor:
        stop.set()
        monitor.join()


if __name__ == "__main__":
    main()
