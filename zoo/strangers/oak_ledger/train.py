import argparse
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from store import RunStore, register_artifact


def save_checkpoint(model, step, workdir, db_path):
    target = workdir / f"step{step:05d}.pt"
    torch.save(model.module.state_dict(), target)
    print(f"checkpoint {target.name} written", flush=True)
    register_artifact(db_path, step, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-at", type=int, nargs="*", default=[20, 45, 100, 200])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    store = None
    db_path = args.workdir / "run.sqlite"
    if rank == 0:
        args.workdir.mkdir(parents=True, exist_ok=True)
        store = RunStore(db_path)

    for step in range(1, args.steps + 1):
        x = torch.randn(32, 16, generator=gen)
        loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.06)
        if store:
            store.log(step, loss=loss.item(), lr=opt.param_groups[0]["lr"])
        if rank == 0 and step in args.save_at:
            save_checkpoint(model, step, args.workdir, db_path)

    if store:
        store.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
