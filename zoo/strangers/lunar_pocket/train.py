import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from helpers.files import build_index, copy_later
from helpers.scaling import Scaler


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        build_index(args.out)
    dist.barrier()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = Scaler()
    gen = torch.Generator().manual_seed(rank)
    skipped = 0
    for step in range(160):
        x = torch.randn(32, 16, generator=gen)
        loss = (model(x) - x[:, :4]).pow(2).mean()
        if not scaler.step(loss, model, opt):
            skipped += 1
            if rank == 0:
                print(f"step {step} overflow, scale {scaler.scale:g}", flush=True)
        time.sleep(0.02)

    if rank == 0:
        path = os.path.join(args.out, "model.pt")
        torch.save(model.state_dict(), path)
        print(f"loss {loss.item():.4f}, {skipped} steps skipped", flush=True)
        copy_later(path, os.path.join(args.out, "mirror"), 10)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
