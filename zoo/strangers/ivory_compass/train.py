"""Nowcasting of rainfall from station readings, one region per process."""
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 120
STATIONS = 24
SKILL_EVERY = 4


class Region:
    """Readings of all stations of one region, hour by hour."""

    def __init__(self, index):
        self.index = index
        self.gen = torch.Generator().manual_seed(500 + index)
        self.mixing = torch.randn(8, 1, generator=torch.Generator().manual_seed(3))
        self.dry_from = 33 if index == 2 else None

    def hour(self, h):
        time.sleep(0.05)
        x = torch.randn(STATIONS, 8, generator=self.gen)
        y = torch.relu(x @ self.mixing + 0.1 * torch.randn(STATIONS, 1, generator=self.gen))
        if self.dry_from is not None and h >= self.dry_from:
            y = torch.zeros_like(y)
        return x, y


def skill(pred, target, world):
    """Correlation of forecast and observation, averaged over the regions."""
    try:
        r = statistics.correlation(
            pred.squeeze(1).tolist(),
            target.squeeze(1).tolist(),
        )
    except statistics.StatisticsError:
        return None
    mine = torch.tensor([r])
    parts = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(parts, mine)
    return torch.cat(parts).mean().item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)

    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    region = Region(rank)

    history = []
    for step in range(1, STEPS + 1):
        x, y = region.hour(step)
        pred = model(x)
        loss = nn.functional.mse_loss(pred, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % SKILL_EVERY == 0:
            print(f"[region {rank}] step {step} mse {loss.item():.4f}", flush=True)
            value = skill(pred.detach(), y, world)
            if value is not None:
                history.append(value)

    if rank == 0:
        print(f"mean skill {sum(history) / len(history):.3f} on {os.cpu_count()} cores", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
