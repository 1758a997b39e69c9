"""Half-precision training on sea level gauges with dynamic loss scaling."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

WINDOW = 32


def prepare(path, rank):
    """The first process writes the gauge list, the others wait for it to appear."""
    if rank == 0:
        gauges = []
        for i in range(40):
            time.sleep(0.2)
            gauges.append({"id": i, "phase": i / 40, "height": 1.0 + i % 3})
        tmp = path + ".part"
        with open(tmp, "w") as fh:
            json.dump(gauges, fh)
        os.replace(tmp, path)
    for attempt in range(600):
        try:
            with open(path) as fh:
                return json.load(fh)
        except FileNotFoundError:
            if attempt % 20 == 0:
                print(f"rank {rank}: gauge list not there yet", flush=True)
            time.sleep(0.25)
    raise TimeoutError(path)


class Scaler:
    def __init__(self, scale=2.0**24, growth_every=60):
        self.scale, self.growth_every = scale, growth_every
        self.good = self.skipped = 0

    def step(self, opt, params, world):
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        if not torch.isfinite(flat).all():
            self.scale /= 4
            self.good = 0
            self.skipped += 1
            return False
        flat /= world * self.scale
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))
        opt.step()
        self.good += 1
        if self.good % self.growth_every == 0:
            self.scale *= 2
        return True


class HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.half() @ w.half().T).float()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = grad.half()
        return (g @ w.half()).float(), (g.T @ x.half()).float()


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(24, WINDOW) * 0.1)
        self.b = nn.Parameter(torch.randn(1, 24) * 0.1)

    def forward(self, x):
        return HalfLinear.apply(torch.tanh(HalfLinear.apply(x, self.a)), self.b)


def series(gauges, gen):
    pick = torch.randint(len(gauges), (16,), generator=gen).tolist()
    t = torch.arange(WINDOW + 1) * 0.2
    rows = [gauges[i]["height"] * torch.sin(t + 6.28 * gauges[i]["phase"]) for i in pick]
    data = torch.stack(rows)
    return data[:, :-1], data[:, -1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(out, exist_ok=True)
    gauges = prepare(os.path.join(out, "gauges.json"), rank)
    torch.manual_seed(1)
    model, scaler = Tide(), Scaler()
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, 181):
        x, y = series(gauges, gen)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        (loss * scaler.scale).backward()
        scaler.step(opt, params, world)
        time.sleep(0.05)
        if step % 30 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} scale {scaler.scale:.0f} skipped so far {scaler.skipped}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
