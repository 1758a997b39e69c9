"""Satellite cloud masks: scenes come from object storage through a small in-memory cache."""
import argparse
import collections
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class ObjectStorage:
    """Stands for the bucket: every request costs a round trip."""

    latency = 0.05

    def get(self, key):
        time.sleep(self.latency)
        g = torch.Generator().manual_seed(key)
        return torch.randn(4, 8, 8, generator=g)


class SceneCache:
    def __init__(self, storage, capacity):
        self.storage, self.capacity = storage, capacity
        self.items = collections.OrderedDict()
        self.misses = 0

    def load(self, key):
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        self.misses += 1
        scene = self.storage.get(key)
        self.items[key] = scene
        if len(self.items) > self.capacity:
            self.items.popitem(last=False)
        return scene


class Scenes(Dataset):
    def __init__(self, keys, cache):
        self.keys, self.cache = keys, cache

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        scene = self.cache.load(self.keys[i])
        return scene, (scene[:1] > 0.3).float()


def my_scenes(rank, world):
    """Regions are assigned whole, so that neighbouring scenes stay together."""
    regions = {"alps": 8, "andes": 8, "sahara": 14}
    name = sorted(regions)[rank % len(regions)]
    base = 1000 * (rank + 1)
    wanted = 40
    return name, [base + (i % regions[name]) for i in range(wanted)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--cache-scenes", type=int, default=12)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    name, keys = my_scenes(rank, world)
    cache = SceneCache(ObjectStorage(), args.cache_scenes)
    loader = DataLoader(Scenes(keys, cache), batch_size=4)
    model = DDP(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    print(f"[{rank}] region {name}: {len(set(keys))} scenes", flush=True)
    for epoch in range(args.epochs):
        begin, total = time.time(), 0.0
        for scene, mask in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(scene), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"[{rank}] epoch {epoch}: loss {total / len(loader):.4f}, {time.time() - begin:.2f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
