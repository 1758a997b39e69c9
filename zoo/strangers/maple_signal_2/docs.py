import hashlib
import random

import torch
from torch.utils.data import Dataset


class Reviews(Dataset):
    """Labelled reviews; the second half of the file holds the long ones."""

    def __init__(self, n=320, seed=2):
        rng = random.Random(seed)
        self.rows = []
        for i in range(n):
            label = rng.randrange(3)
            length = 20 if i < n // 2 else 900
            lo = 5 + 30 * label
            self.rows.append({"words": [rng.randrange(lo, lo + 40) for _ in range(length)], "label": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class NoisyCollator:
    """Drops and hashes words the way the tokenizer service does, then pads."""

    def __init__(self, max_len=48, passes=60):
        self.max_len = max_len
        self.passes = passes

    def _noise(self, words):
        for p in range(self.passes):
            keys = [hashlib.md5(f"{p}:{w}".encode()).digest()[0] for w in words]
        return [w for w, k in zip(words, keys) if k > 10][: self.max_len]

    def __call__(self, rows):
        seqs = [self._noise(r["words"]) or [1] for r in rows]
        width = max(map(len, seqs))
        ids = torch.tensor([s + [0] * (width - len(s)) for s in seqs])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": torch.tensor([r["label"] for r in rows]),
        }
