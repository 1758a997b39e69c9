import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from ring import OverlappedReducer, ring_sum


def snapshot(model, folder, step):
    print(f"writing snapshot at step {step}", flush=True)
    for part in range(14):
        path = os.path.join(folder, f"snap-{step}-{part}.pt")
        torch.save(model.state_dict(), path)
        time.sleep(0.5)  # throttled share


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    writer = world - 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12))
    reducer = OverlappedReducer(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)

    for step in range(91):
        x = torch.randn(20, 12, generator=gen)
        with torch.no_grad():
            context = ring_sum(x, lambda b: torch.softmax(x @ b.T, dim=1) @ b) / world
        loss = (model(x) - context).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        reducer.finish()
        opt.step()
        time.sleep(0.02)
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == writer and step in (30, 60):
            snapshot(model, args.out, step)

    check = torch.stack([p.detach().sum() for p in model.parameters()])
    everyone = [torch.empty_like(check) for _ in range(world)]
    dist.all_gather(everyone, check)
    assert all(torch.equal(check, other) for other in everyone)
    dist.destroy_process_group()
    print(f"rank {rank} finished", flush=True)


if __name__ == "__main__":
    main()
