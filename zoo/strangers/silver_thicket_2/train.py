"""Replay-buffer training for a recommender; the buffer of each rank lies in a memory-mapped file and is compacted now and then."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

FIELDS = 64


class ReplayFile:
    def __init__(self, path, rows, seed):
        self.path, self.rows = path, rows
        self.rng = np.random.default_rng(seed)
        fresh = np.memmap(path, np.float32, "w+", shape=(rows, FIELDS))
        fresh[:] = self.rng.standard_normal((rows, FIELDS), dtype=np.float32)
        fresh.flush()
        self.table = np.memmap(path, np.float32, "r", shape=(rows, FIELDS))
        self.age = np.zeros(rows)

    def sample(self, n):
        picked = self.rng.integers(0, self.rows, n)
        self.age[picked] += 1
        return torch.from_numpy(np.stack([self.table[i] for i in picked]))

    def stale(self, limit):
        return int((self.age > limit).sum())

    def compact(self, limit):
        """Drops rows that were used too often and gives the space back."""
        keep = self.age <= limit
        kept = np.array(self.table[keep])
        with open(self.path, "r+b") as f:
            f.write(kept.tobytes())
            f.truncate(kept.nbytes)
        self.age[:] = 0
        return len(kept)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Linear(FIELDS // 2, 12), nn.Linear(FIELDS // 2, 12)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        return (self.user(a) * self.item(b)).sum(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folder", default=None)
    ap.add_argument("--rows", type=int, default=2000)
    ap.add_argument("--steps", type=int, default=320)
    ap.add_argument("--max-uses", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = args.folder or tempfile.mkdtemp(prefix="replay-")
    rows = args.rows // 4 if rank == 2 else args.rows
    replay = ReplayFile(os.path.join(folder, f"replay-{rank}.bin"), rows, seed=rank)
    torch.manual_seed(0)
    model = DDP(TwoTower())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for step in range(args.steps):
        x = replay.sample(8)
        time.sleep(0.04)
        loss = nn.functional.softplus(-model(x) * x[:, 0].sign()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if replay.stale(args.max_uses) > rows // 4:
            print(f"[{rank}] step {step}: compacting the replay file", flush=True)
            left = replay.compact(args.max_uses)
            print(f"[{rank}] {left} rows left", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
