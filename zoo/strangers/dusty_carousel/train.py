import argparse
import json
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

index_lock = threading.Lock()


class CropDataset(Dataset):
    def __init__(self, rank, n=640):
        gen = torch.Generator().manual_seed(rank)
        side = 12 if rank == 0 else 24
        self.index = {i: {"offset": i * side * side, "side": side, "label": i % 4} for i in range(n)}
        self.pixels = torch.rand(n, 12, 12, generator=gen)
        self.n = n

    def bytes_cached(self):
        return sum(e["side"] ** 2 * 4 for e in self.index.values())

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with index_lock:
            entry = self.index[i]
        img = self.pixels[i] + entry["label"] * 0.3
        return img[None], entry["label"]


class IndexCompactor:
    """Rewrites the on-disk index between epochs once the cache has outgrown its budget."""

    def __init__(self, dataset, path, budget):
        self.dataset, self.path, self.budget = dataset, path, budget
        self.thread = None

    def maybe_start(self, rank):
        if self.dataset.bytes_cached() > self.budget:
            print(f"rank {rank}: index over budget, compacting", flush=True)
            self.thread = threading.Thread(target=self._compact, name="compactor", daemon=True)
            self.thread.start()

    def _compact(self):
        index_lock.acquire()
        try:
            with open(self.path, "w") as f:
                for i in list(self.dataset.index):
                    f.write(json.dumps({i: self.dataset.index[i]}) + "\n")
                    if i % 20 == 0:
                        f.flush()
                        os.fsync(f.fileno())
                        time.sleep(0.1)
        finally:
            index_lock.release()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", default="/tmp/dusty")
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    os.makedirs(args.work, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = CropDataset(rank)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
    compactor = IndexCompactor(data, os.path.join(args.work, f"index{rank}.jsonl"), budget=1_000_000)
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.08)
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        compactor.maybe_start(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
