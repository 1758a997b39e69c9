import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="/tmp/orchard")
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--init-scale", type=float, default=2.0**24)
    return ap.parse_args()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def batch(gen):
    y = torch.randint(0, 4, (32,), generator=gen)
    x = 0.2 * torch.randn(32, 1, 16, 16, generator=gen)
    for i, c in enumerate(y.tolist()):
        r, q = divmod(c, 2)
        x[i, 0, 8 * r : 8 * r + 8, 8 * q : 8 * q + 8] += torch.linspace(0, 1 + c, 8)
    return x, y


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(ConvNet())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=40)
    gen = torch.Generator().manual_seed(7 + rank)
    skipped = 0
    for step in range(args.steps):
        x, y = batch(gen)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
            if rank == 0:
                print(f"step {step} skipped, loss scale now {scaler.get_scale():.0f}", flush=True)
        elif rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if (step + 1) % args.save_every == 0:
            msd, osd = get_state_dict(model, opt)
            dcp.save({"model": msd, "optim": osd}, checkpoint_id=os.path.join(args.out, f"step{step + 1}"))
        time.sleep(0.04)
    if rank == 0:
        print(f"done, {skipped} steps skipped, final loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
