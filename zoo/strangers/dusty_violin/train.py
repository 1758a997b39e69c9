"""Tree species from laser scans: neighbour histograms into a small classifier."""
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

BINS = 24
SPECIES = 5
SCANS = 100


def log(msg):
    sys.stderr.write(f"[{time.strftime('%X')}][rank {dist.get_rank()}] {msg}\n")
    sys.stderr.flush()


class ScanArchive:
    """Point clouds of one forest plot."""

    SIZES = {(2, 40): 6_000_000}

    def __init__(self, plot):
        self.plot = plot
        self.rng = np.random.default_rng(70 + plot)

    def __len__(self):
        return SCANS

    def load(self, i):
        n = self.SIZES.get((self.plot, i), 180)
        label = int(self.rng.integers(SPECIES))
        points = self.rng.random((n, 3), dtype=np.float32) * (1.0 + 0.2 * label)
        return points, label


def neighbour_histogram(points, chunk=64):
    n = len(points)
    dist2 = np.empty((n, n), dtype=np.float64)
    for lo in range(0, n, chunk):
        diff = points[lo : lo + chunk, None, :] - points[None, :, :]
        dist2[lo : lo + chunk] = np.square(diff).sum(-1)
    hist, _ = np.histogram(np.sqrt(dist2), bins=BINS, range=(0.0, 2.5))
    return hist.astype(np.float32) / dist2.size


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(nn.Sequential(nn.BatchNorm1d(BINS), nn.Linear(BINS, 40), nn.ReLU(), nn.Linear(40, SPECIES)))
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    archive = ScanArchive(rank)

    hits = seen = 0
    for i in range(0, len(archive), 2):
        clouds = [archive.load(j) for j in (i, i + 1)]
        if i % 10 == 0:
            log(f"scan {i} with {len(clouds[0][0])} points")
        feats = [neighbour_histogram(points) for points, _ in clouds]
        x = torch.from_numpy(np.stack(feats))
        y = torch.tensor([label for _, label in clouds])
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (out.argmax(-1) == y).sum().item()
        seen += len(y)
        time.sleep(0.12)

    score = torch.tensor([hits, seen], dtype=torch.float64)
    dist.reduce(score, dst=0)
    if rank == 0:
        log(f"accuracy {score[0] / score[1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
