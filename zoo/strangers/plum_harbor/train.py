"""Tide-height forecasting in reduced precision with dynamic loss scaling and an unreliable buoy archive."""
import logging
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn

log = logging.getLogger("tide")


class ArchiveError(OSError):
    pass


class BuoyArchive:
    """Returns (history, next height). Some buoys report gaps as NaN, and the archive times out now and then."""

    def __init__(self, rank):
        self.rng = random.Random(40 + rank)
        self.gen = torch.Generator().manual_seed(rank)

    def read(self, n=12):
        if self.rng.random() < 0.08:
            time.sleep(0.1)
            raise ArchiveError("archive did not answer in time")
        t = torch.rand(n, 1, generator=self.gen) * 20
        x = torch.sin(t + torch.arange(16) * 0.3)
        y = torch.sin(t + 16 * 0.3)
        if self.rng.random() < 0.3:
            x[self.rng.randrange(n), self.rng.randrange(16)] = float("nan")
        return x, y


def with_retry(fn, tries=6, wait=0.2):
    for attempt in range(tries):
        try:
            return fn()
        except ArchiveError as err:
            log.warning("attempt %d failed: %s", attempt + 1, err)
            time.sleep(wait * 2 ** attempt)
    return fn()


class Scaler:
    """Loss scaling where all ranks agree on skipping a step."""

    def __init__(self, scale=2.0 ** 15, growth_every=40):
        self.scale, self.growth_every, self.good, self.skipped = scale, growth_every, 0, 0

    def step(self, opt, params):
        bad = torch.zeros(1)
        for p in params:
            p.grad = p.grad.half().float() / self.scale
            if not torch.isfinite(p.grad).all():
                bad.fill_(1.0)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            self.scale /= 2
            self.good, self.skipped = 0, self.skipped + 1
            return False
        flat = torch.cat([p.grad.view(-1) for p in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        at = 0
        for p in params:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        opt.step()
        self.good += 1
        if self.good % self.growth_every == 0:
            self.scale *= 2
        return True


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.WARNING, format=f"[{rank}] %(levelname)s %(message)s")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1))
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.05)
    archive, scaler = BuoyArchive(rank), Scaler(scale=2.0 ** 19)
    print(f"[{rank}] forecasting starts", flush=True)
    dropped = 0
    for step in range(200):
        x, y = with_retry(archive.read)
        out = model(x)
        per_row = ((out - y) ** 2).squeeze(1)
        valid = torch.isfinite(per_row)
        dropped += int((~valid).sum())
        x, y = x[valid], y[valid]
        loss = ((model(x) - y) ** 2).mean()
        opt.zero_grad()
        (loss * scaler.scale).backward()
        if not scaler.step(opt, params) and rank == 0:
            print(f"step {step}: skipped, scale now {scaler.scale:.0f}", flush=True)
        time.sleep(0.02)
        if step % 50 == 49:
            print(f"[{rank}] step {step} loss {loss.item():.4f} dropped rows {dropped}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
