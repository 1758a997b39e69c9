"""Metric learning for mushroom photos: embeddings, pairwise distances, triplet margin."""
from dataclasses import dataclass
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Options:
    species: int = 6
    per_species: int = 3
    features: int = 14
    margin: float = 0.4
    steps: int = 220
    lr: float = 0.02


class Photos:
    """Groups of photos per species. The second camera of the last site sometimes stores a picture twice."""

    def __init__(self, opt, rank, world):
        self.opt, self.last_site = opt, rank == world - 1
        self.gen = torch.Generator().manual_seed(rank)
        self.centers = torch.randn(opt.species, opt.features, generator=torch.Generator().manual_seed(99))

    def draw(self, step):
        o = self.opt
        label = torch.arange(o.species).repeat_interleave(o.per_species)
        x = self.centers[label] + 0.5 * torch.randn(len(label), o.features, generator=self.gen)
        if self.last_site and step % 64 == 63 and step > 100:
            x[1] = x[0]
        return x, label


class Embedder(nn.Module):
    def __init__(self, features, dim=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 24), nn.ReLU(), nn.Linear(24, dim))

    def forward(self, x):
        return self.net(x)


def distances(e):
    diff = e[:, None, :] - e[None, :, :]
    off = ~torch.eye(len(e), dtype=torch.bool)
    squared = diff.pow(2).sum(-1)[off].view(len(e), len(e) - 1)
    return squared.sqrt(), off


def triplet_loss(e, label, margin):
    d, off = distances(e)
    same = (label[:, None] == label[None, :])[off].view_as(d)
    furthest = (d * same).amax(1)
    nearest = d.masked_fill(same, 1e4).amin(1)
    return torch.relu(furthest - nearest + margin).mean() + 0.01 * (d * same).mean()


def main():
    o = Options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(23)
    model = DDP(Embedder(o.features))
    optim = torch.optim.SGD(model.parameters(), lr=o.lr)
    photos = Photos(o, rank, world)
    history = []
    for step in range(o.steps):
        x, label = photos.draw(step)
        time.sleep(0.045)
        loss = triplet_loss(model(x), label, o.margin)
        optim.zero_grad()
        loss.backward()
        optim.step()
        history.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: triplet loss {history[-1]:.4f}", flush=True)
    mean = torch.tensor(history[-20:]).mean()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"final loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
