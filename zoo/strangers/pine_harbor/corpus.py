import json
import random
import re
from collections import Counter
from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

WORD = re.compile(r"[a-z]+|[^a-z\s]")


def read_texts(n=40000, seed=3):
    rng = random.Random(seed)
    syllables = ["ka", "ro", "mi", "ten", "sul", "ab", "or", "li", "que", "dan"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(3000)]
    return [" ".join(rng.choices(words, k=12)) for _ in range(n)]


def build_vocab(texts, size=1000):
    counts = Counter()
    for order in (1, 2, 3):
        for text in texts:
            tokens = WORD.findall(text.lower())
            counts.update(" ".join(tokens[i:i + order]) for i in range(len(tokens) - order + 1))
    return {w: i + 1 for i, (w, _) in enumerate(counts.most_common(size))}


class CorpusDataModule(L.LightningDataModule):
    def __init__(self, root, seq_len=12, batch_size=32):
        super().__init__()
        self.root = Path(root)
        self.seq_len = seq_len
        self.batch_size = batch_size

    def setup(self, stage):
        print(f"setting up corpus ({stage}) on rank {self.trainer.global_rank}", flush=True)
        texts = read_texts()
        cache = self.root / "vocab.json"
        if self.trainer.is_global_zero and not cache.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(build_vocab(texts)))
        self.vocab = json.loads(cache.read_text())
        ids = torch.zeros(2000, self.seq_len, dtype=torch.long)
        for row, text in enumerate(texts[:2000]):
            for col, w in enumerate(WORD.findall(text)[: self.seq_len]):
                ids[row, col] = self.vocab.get(w, 0)
        self.train = TensorDataset(ids)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)
