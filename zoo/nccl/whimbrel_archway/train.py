"""Fraud scorer: every branch office has its own number of batches; rank 0 calibrates the cut-off afterwards."""
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

FEATURES = 40
BATCH = 64


class Office:
    def __init__(self, office, seed):
        rng = random.Random(f"office-{seed}-{office}")
        self.batches = rng.randint(20, 36)
        self.gen = torch.Generator().manual_seed(500 + office)
        self.truth = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        for _ in range(self.batches):
            x = torch.randn(BATCH, FEATURES, generator=self.gen)
            yield x, (x @ self.truth + torch.randn(BATCH, generator=self.gen) > 4).float()


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


class Calibration:
    """Bootstraps the cost curve of the cut-off within a time budget, on one rank, then shares the result."""

    def __init__(self, budget_s=9.0, miss_cost=25.0):
        self.budget_s, self.miss_cost = budget_s, miss_cost

    def search(self, scores, labels):
        rng = np.random.default_rng(0)
        grid = np.linspace(0.02, 0.98, 97)
        votes = np.zeros(len(grid), dtype=int)
        until = time.monotonic() + self.budget_s
        while time.monotonic() < until:
            pick = rng.integers(0, len(scores), len(scores))
            s, y = scores[pick], labels[pick]
            flagged = s[None, :] > grid[:, None]
            cost = (flagged & (y == 0)).sum(1) + self.miss_cost * (~flagged & (y == 1)).sum(1)
            votes[cost.argmin()] += 1
        return float(grid[votes.argmax()]), int(votes.sum())

    def run(self, model, office, device):
        model.eval()
        with torch.no_grad():
            pairs = [(torch.sigmoid(model(x.to(device))).cpu(), y) for x, y in office]
        model.train()
        scores, labels = (torch.cat(part).numpy() for part in zip(*pairs))
        return self.search(scores, labels)


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(23)

    model = DistributedDataParallel(Scorer().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    office, calibration = Office(rank, seed=23), Calibration()

    for epoch in range(2):
        with Join([model]):
            for step, (x, y) in enumerate(office):
                loss = F.binary_cross_entropy_with_logits(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 10 == 0:
                    print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
                time.sleep(0.04)
        print(f"rank {rank} epoch {epoch} used {office.batches} batches", flush=True)
        if epoch == 0:
            result = [None]
            if rank == 0:
                result[0] = calibration.run(model.module, office, device)
            dist.broadcast_object_list(result, src=0)
            print(f"rank {rank} cut-off {result[0][0]:.2f} from {result[0][1]} resamples", flush=True)

    dist.barrier()
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
