import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data():
    gen = torch.Generator().manual_seed(0)
    x = torch.rand(2400, 12, generator=gen) * 2 - 1
    y = (x[:, :4].sum(dim=1) > 0).long() + 2 * (x[:, 4:8].sum(dim=1) > 0).long()
    return TensorDataset(x[:1800], y[:1800]), (x[1800:], y[1800:])


def restore(model, path):
    model.module.load_state_dict(torch.load(path))


@torch.no_grad()
def validate(model, data, rank, world):
    x, y = data
    part = slice(rank, None, world)
    loss = nn.functional.cross_entropy(model.module(x[part]), y[part])
    dist.all_reduce(loss)
    return loss.item() / world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    ap.add_argument("--epochs", type=int, default=14)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)
    best_path = os.path.join(args.out, "best.pt")
    train_set, val_set = make_data()
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=20, sampler=sampler)
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    best, waited = float("inf"), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.02)
        val = validate(model, val_set, rank, world)
        if rank == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}", flush=True)

        if val < best:
            best, waited = val, 0
            if rank == 0:
                torch.save(model.module.state_dict(), best_path)
        else:
            waited += 1
        if waited == 2:
            waited = 0
            for group in opt.param_groups:
                group["lr"] *= 0.3
            if rank == 0:  # checkpoints live here
                print(f"plateau at epoch {epoch}, lr {opt.param_groups[0]['lr']:.3g}, back to best {best:.4f}", flush=True)
                restore(model, best_path)

    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.out, "last.pt"))
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
