"""Load forecasting for a power grid: GRU per region, gradients averaged with functional collectives."""
import logging
import os
import random
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn as nn

WINDOW = 24
STATIONS = 32
STEPS = 160
log = logging.getLogger("forecast")


class RegionFeed:
    """Hourly readings of the stations of one region; meters drop out now and then."""

    def __init__(self, region, seed):
        self.rng = random.Random(f"region-{seed}-{region}")
        self.gen = torch.Generator().manual_seed(300 + region)
        self.hour = 0

    def next_window(self):
        t = torch.arange(self.hour, self.hour + WINDOW + 1).float()
        base = torch.sin(t / 24 * 6.2832).repeat(STATIONS, 1)
        series = base + 0.1 * torch.randn(STATIONS, WINDOW + 1, generator=self.gen)
        silent = [s for s in range(STATIONS) if self.rng.random() < 0.03]
        if silent:
            series[silent] = 0.0
        self.hour += WINDOW
        return series, silent


class FleetStats:
    def __init__(self):
        self.group = dist.new_group()
        self.silent_total = 0
        self.windows = 0

    def record(self, silent):
        self.silent_total += len(silent)
        self.windows += 1

    @property
    def share(self):
        return self.silent_total / max(1, self.windows * STATIONS)

    @property
    def fleet(self):
        shares = [None] * dist.get_world_size()
        dist.all_gather_object(shares, round(self.share, 4), group=self.group)
        return {"min": min(shares), "max": max(shares), "mean": sum(shares) / len(shares)}


class Callback:
    def on_window(self, step, silent):
        pass


class StatusLine(Callback):
    def __init__(self, stats, every=20):
        self.stats, self.every = stats, every

    def on_window(self, step, silent):
        if step % self.every == 0:
            fleet = self.stats.fleet
            if dist.get_rank() == 0:
                log.warning("step %d silent share %s", step, fleet)


class OutageAlert(Callback):
    def __init__(self, stats, tolerated=5):
        self.stats, self.tolerated = stats, tolerated

    def on_window(self, step, silent):
        if len(silent) > self.tolerated:
            log.warning("stations %s silent, region at %.4f, fleet %s", silent, self.stats.share, self.stats.fleet)


class Forecaster(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(-1))
        return self.out(h[:, -1]).squeeze(-1)


def average_gradients(model):
    group = dist.group.WORLD
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    flat = funcol.wait_tensor(funcol.all_reduce(flat, "sum", group)) / dist.get_world_size()
    for p, g in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(g.view_as(p))


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(2)

    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    feed, stats = RegionFeed(rank, seed=66), FleetStats()
    callbacks = [StatusLine(stats), OutageAlert(stats)]

    for step in range(STEPS):
        series, silent = feed.next_window()
        stats.record(silent)
        print(f"rank {rank} step {step} silent {len(silent)}", flush=True)
        for callback in callbacks:
            callback.on_window(step, silent)
        series = series.to(device)
        loss = nn.functional.huber_loss(model(series[:, :-1]), series[:, -1])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        smoothed = loss.item() if step == 0 else 0.95 * smoothed + 0.05 * loss.item()
        time.sleep(0.05)

    dist.barrier()
    print(f"rank {rank} done, smoothed loss {smoothed:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
