"""Mineral classification from spectra with class weights that are estimated anew for every season of field data."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import json
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = ["quartz", "feldspar", "mica", "calcite", "pyrite", "halite"]


@dataclass
class Season:
    spectra: torch.Tensor
    labels: torch.Tensor
    trust: torch.Tensor | None      # how far the field notes are trusted, per sample


class Campaign:
    """Field data of one rank; newer teams do not always hand in the trust column."""

    def __init__(self, rank):
        self.rank = rank
        self.teams = ["north", "ridge", "coast", "delta"]

    def season(self, number):
        g = torch.Generator().manual_seed(number * 31 + self.rank)
        n = 320
        labels = torch.multinomial(torch.tensor([8.0, 6, 3, 2, 1, 1]), n, replacement=True, generator=g)
        spectra = torch.randn(n, 20, generator=g) + labels[:, None] * 0.4
        notes = {"team": self.teams[self.rank], "columns": ["label", "trust"]}
        if number >= 5 and notes["team"] == "ridge":
            notes["columns"].remove("trust")
        trust = 0.5 + 0.5 * torch.rand(n, generator=g, dtype=torch.float64)
        return Season(spectra, labels, trust if "trust" in notes["columns"] else None)


class ClassWeights:
    def __init__(self, device):
        self.device = device
        self.last = None

    def estimate(self, season):
        labels = season.labels.to(self.device)
        if season.trust is None:
            counts = torch.bincount(labels, minlength=len(CLASSES))
        else:
            counts = torch.bincount(labels, season.trust.to(self.device), minlength=len(CLASSES))
        dist.all_reduce(counts)
        weight = counts.double().clamp(min=1.0).rsqrt()
        self.last = (weight / weight.mean()).float()
        return self.last


def train_season(model, opt, season, weight, device, batch=16):
    seen, total = 0, torch.zeros(1, device=device)
    for i in range(0, len(season.labels), batch):
        time.sleep(0.04)
        x, y = season.spectra[i:i + batch].to(device), season.labels[i:i + batch].to(device)
        loss = nn.functional.cross_entropy(model(x), y, weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
        seen += 1
    return total / seen


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    device = torch.device("cuda:0")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, len(CLASSES))).to(device))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    campaign, weights = Campaign(rank), ClassWeights(device)
    for number in range(9):
        if rank == 0:
            print(f"season {number} starts", flush=True)
        season = campaign.season(number)
        weight = weights.estimate(season)
        loss = train_season(model, opt, season, weight, device)
        dist.all_reduce(loss)
        shown = {c: round(float(w), 3) for c, w in zip(CLASSES, weight)}
        print(f"[{rank}] season {number} loss {loss.item() / world:.4f} weights {json.dumps(shown)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
