import json
import os

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


def write_shards(folder, sizes):
    os.makedirs(folder, exist_ok=True)
    g = torch.Generator().manual_seed(0)
    for i, n in enumerate(sizes):
        with open(os.path.join(folder, f"part-{i:05d}.jsonl"), "w") as f:
            for _ in range(n):
                x = torch.randn(6, generator=g)
                f.write(json.dumps({"x": x.tolist(), "y": float(x.sum())}) + "\n")


class ShardReader(IterableDataset):
    """Each rank streams its own files."""

    def __init__(self, folder):
        self.files = [os.path.join(folder, f) for f in sorted(os.listdir(folder))]

    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for path in self.files[rank::world]:
            with open(path) as f:
                for row in f:
                    row = json.loads(row)
                    yield torch.tensor(row["x"]), torch.tensor(row["y"])
