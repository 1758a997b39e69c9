import argparse
import pathlib
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from packed import PackedRows, write_rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path = args.workdir / "hard_examples.f32"
    if rank == 0:
        write_rows(path, rows=6000, seed=0)
    dist.barrier()
    rows = PackedRows(path)
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(PackedRows.WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    order = np.random.default_rng(rank)
    for round_no in range(1, args.rounds + 1):
        for step in range(args.steps):
            if rank == 0:
                picked = order.integers(0, 900, 32)  # recent ones only: rank 0 replays
            else:
                picked = order.integers(len(rows) * rank // world, len(rows), 32)
            x = rows.take(picked)
            opt.zero_grad()
            (model(x).squeeze(1) - x.mean(1)).pow(2).mean().backward()
            opt.step()
            time.sleep(0.04)
        dist.barrier()
        if rank == 0:
            keep = 6000 if round_no < 2 else 1500
            print(f"round {round_no} done, keeping {keep} rows", flush=True)
            write_rows(path, rows=keep, seed=round_no)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
