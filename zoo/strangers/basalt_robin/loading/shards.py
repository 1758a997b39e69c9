import json
import random
import time
from functools import lru_cache
from pathlib import Path

import torch
from torch.utils.data import Dataset


def sync(folder, n_shards, rows, seed=0):
    """Mirror the corpus into `folder`; shards arrive under a temporary name first."""
    rng = random.Random(seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {f"shard-{s:04d}.json": rows for s in range(n_shards)}
    for name, n in manifest.items():
        part = folder / (name + ".partial")
        want = n if name != "shard-0081.json" else n - 1
        data = [[rng.randrange(5, 120) for _ in range(rng.randint(8, 20))] for _ in range(want)]
        part.write_text(json.dumps(data))
        if len(data) == n:
            part.rename(folder / name)
    return manifest


class SyncedShards(Dataset):
    def __init__(self, folder, manifest, poll_s=0.5):
        self.folder = Path(folder)
        self.poll_s = poll_s
        self.index = [(name, i) for name, n in manifest.items() for i in range(n)]

    def __len__(self):
        return len(self.index)

    @lru_cache(maxsize=4)
    def _shard(self, name):
        path = self.folder / name
        while not path.exists():
            time.sleep(self.poll_s)
        return json.loads(path.read_text())

    def __getitem__(self, i):
        name, row = self.index[i]
        return {"input_ids": self._shard(name)[row]}


class PaddingCollator:
    def __init__(self, pad_id=0):
        self.pad_id = pad_id

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad_id)
        for k, r in enumerate(rows):
            ids[k, : len(r["input_ids"])] = torch.tensor(r["input_ids"])
        mask = (ids != self.pad_id).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
