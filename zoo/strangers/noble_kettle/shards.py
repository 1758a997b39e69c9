import os
import time

import torch
from torch.utils.data import Dataset


class ArchiveDataset(Dataset):
    """Rows live in shards; a shard that is not in the local cache is recalled from tape first."""

    SHARD = 64

    def __init__(self, n, cold=(), recall_s=0.0):
        self.n, self.cold, self.recall_s = n, set(cold), recall_s
        self._open = {}

    def _shard(self, k):
        if k not in self._open:
            if k in self.cold:
                print(f"recalling shard {k} (process {os.getpid()})", flush=True)
                time.sleep(self.recall_s)
            gen = torch.Generator().manual_seed(k)
            start = torch.randint(0, 30, (self.SHARD, 1), generator=gen)
            self._open[k] = (start + torch.arange(12)) % 48
        return self._open[k]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = self._shard(i // self.SHARD)[i % self.SHARD]
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
