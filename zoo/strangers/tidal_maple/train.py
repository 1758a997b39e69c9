"""Vector-quantised autoencoder; the codebook is rebuilt once by the rank with the best reconstruction."""
import datetime
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Conf:
    features: int = 12
    latent: int = 6
    codes: int = 16
    batch: int = 12
    steps: int = 150
    rebuild_at: int = 95
    search_seconds: float = 9.5
    pause: float = 0.03


class Autoencoder(nn.Module):
    def __init__(self, conf):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(conf.features, 16), nn.ReLU(), nn.Linear(16, conf.latent))
        self.decode = nn.Sequential(nn.Linear(conf.latent, 16), nn.ReLU(), nn.Linear(16, conf.features))

    def forward(self, x, codebook):
        z = self.encode(x)
        nearest = torch.cdist(z, codebook).argmin(1)
        snapped = z + (codebook[nearest] - z).detach()
        return self.decode(snapped), z


def kmeans(points, k, rng, rounds=12):
    centres = points[rng.choice(len(points), k, replace=False)]
    for _ in range(rounds):
        gap = ((points[:, None] - centres[None]) ** 2).sum(-1)
        owner = gap.argmin(1)
        for c in range(k):
            if (owner == c).any():
                centres[c] = points[owner == c].mean(0)
    return centres, float(gap.min(1).mean())


class CodebookSearch:
    """Restarts k-means until the time budget is spent and keeps the best codebook."""

    def __init__(self, conf, seed):
        self.conf = conf
        self.rng = np.random.default_rng(seed)

    def run(self, points):
        best, score, tries = None, float("inf"), 0
        deadline = time.monotonic() + self.conf.search_seconds
        while time.monotonic() < deadline:
            centres, inertia = kmeans(points, self.conf.codes, self.rng)
            tries += 1
            if inertia < score:
                best, score = centres.copy(), inertia
        return best, score, tries


def elect(error):
    """Rank with the smallest error; the lower rank wins a tie."""
    board = [None] * dist.get_world_size()
    dist.all_gather_object(board, round(error, 6))
    return min(range(len(board)), key=lambda r: (board[r], r))


def rebuild(conf, points, error, rank):
    owner = elect(error)
    parcel = [None]
    if rank == owner:
        codebook, score, tries = CodebookSearch(conf, seed=3).run(points)
        print(f"rank {rank} tried {tries} codebooks, inertia {score:.4f}", flush=True)
        parcel = [torch.as_tensor(codebook, dtype=torch.float32)]
    dist.broadcast_object_list(parcel, src=owner)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    return parcel[0]


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, conf = dist.get_rank(), Conf()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Autoencoder(conf)
    for part in (model.encode, model.decode):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(31 + rank)
    codebook = torch.randn(conf.codes, conf.latent, generator=torch.Generator().manual_seed(1))
    recent = []
    for step in range(conf.steps):
        x = torch.randn(conf.batch, conf.features, generator=gen) * (1.0 + 0.2 * rank)
        restored, z = model(x, codebook)
        loss = (restored - x).square().mean() + 0.1 * z.square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        recent = (recent + [z.detach()])[-40:]
        time.sleep(conf.pause)
        if step == conf.rebuild_at:
            codebook = rebuild(conf, torch.cat(recent).numpy(), float(loss.detach()), rank)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {float(loss.detach()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
