"""Crop-yield regression; farms report different numbers of fields, so ranks have different numbers of batches."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


@dataclass(frozen=True)
class Farm:
    name: str
    fields: int
    soil: float


FARMS = (Farm("upper", 1280, 0.3), Farm("creek", 905, 0.5), Farm("lowland", 1111, 0.4))
BATCH = 8
EPOCHS = 1


class FieldReports(IterableDataset):
    """Reports of one farm; fields that lay fallow are left out."""

    def __init__(self, farm, seed):
        self.farm, self.seed = farm, seed

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        for n in range(self.farm.fields):
            row = torch.rand(6, generator=gen)
            if row[0] < 0.04:
                continue
            yield row, (row.sum() * self.farm.soil).view(1)


class YieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1))

    def forward(self, x):
        return self.net(x)


class Tally:
    """Local sums, combined over the farms once per epoch."""

    def __init__(self):
        self.error = 0.0
        self.rows = 0
        self.batches = 0

    def add(self, loss, rows):
        self.error += loss * rows
        self.rows += rows
        self.batches += 1

    def combine(self, farm):
        mine = {"farm": farm.name, "error": self.error, "rows": self.rows, "batches": self.batches}
        everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, everyone, dst=0)
        if everyone is None:
            return None
        rows = sum(e["rows"] for e in everyone)
        return sum(e["error"] for e in everyone) / rows, {e["farm"]: e["batches"] for e in everyone}


def train_epoch(model, opt, loader, rank):
    tally = Tally()
    loss_fn = nn.MSELoss()
    with Join([model]):
        for step, (x, y) in enumerate(loader):
            time.sleep(0.04)
            loss = loss_fn(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            tally.add(float(loss.detach()), len(x))
            if step % 10 == 0:
                print(f"[{rank}] step {step} loss {float(loss.detach()):.4f}", flush=True)
        print(f"[{rank}] out of reports after {tally.batches} batches", flush=True)
    return tally


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    farm = FARMS[rank % len(FARMS)]
    model = DDP(YieldNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        reports = FieldReports(farm, seed=10 * epoch + rank)
        loader = DataLoader(reports, batch_size=BATCH, num_workers=1)
        combined = train_epoch(model, opt, loader, rank).combine(farm)
        if combined is not None:
            print("epoch error %.4f, batches %s" % combined, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
