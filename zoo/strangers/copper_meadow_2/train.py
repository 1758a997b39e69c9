"""Keyword classifier on filterbank features, trained with a length curriculum."""
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from norms import BucketNorm


@dataclass
class Config:
    n_mels: int = 12
    hidden: int = 24
    classes: int = 6
    batch: int = 6
    steps: int = 230
    stage_len: int = 44
    caps: tuple = (24, 36, 52, 72, 96)
    lr: float = 0.02
    pause: float = 0.035


CORPORA = (
    {"name": "audiobook", "clips": 260, "longest": 96},
    {"name": "lecture", "clips": 240, "longest": 93},
    {"name": "dictation", "clips": 250, "longest": 51},
)


class Manifest:
    """Clip durations (in frames) of the corpus this rank reads."""

    def __init__(self, corpus, seed):
        rng = np.random.default_rng(seed)
        spread = np.linspace(9, corpus["longest"], corpus["clips"])
        self.durations = np.unique(spread.round().astype(int))
        self.labels = rng.integers(0, 6, size=len(self.durations))
        self.rng = rng

    def draw(self, cap, k):
        """The longest clip that the curriculum admits, and k - 1 others."""
        admitted = np.flatnonzero(self.durations <= cap)
        rest = self.rng.choice(admitted[:-1], size=k - 1, replace=False)
        return np.concatenate([admitted[-1:], rest])


class SpeechBatches:
    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.manifest = Manifest(CORPORA[rank % len(CORPORA)], seed=40 + rank)
        self.gen = torch.Generator().manual_seed(7 * rank + 3)

    def __iter__(self):
        cfg = self.cfg
        for step in range(cfg.steps):
            cap = cfg.caps[min(step // cfg.stage_len, len(cfg.caps) - 1)]
            picked = self.manifest.draw(cap, cfg.batch)
            lengths = torch.as_tensor(self.manifest.durations[picked])
            labels = torch.as_tensor(self.manifest.labels[picked])
            frames = torch.randn(cfg.batch, int(lengths.max()), cfg.n_mels, generator=self.gen)
            frames += labels[:, None, None] * 0.3
            yield frames, lengths, labels


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rnn = nn.GRU(cfg.n_mels, cfg.hidden, batch_first=True)
        self.head = nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x, lengths):
        out, _ = self.rnn(x)
        last = out[torch.arange(len(x)), lengths - 1]
        return self.head(last)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    cfg = Config()
    stats_group = dist.new_group()
    norm = BucketNorm(cfg.caps, cfg.n_mels, group=stats_group)
    model = DDP(Tagger(cfg))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for step, (frames, lengths, labels) in enumerate(SpeechBatches(cfg, rank)):
        if rank == 0:
            print(f"step {step} frames {int(lengths.sum())}", flush=True)
        time.sleep(cfg.pause)
        loss = loss_fn(model(norm(frames, lengths), lengths), labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"done loss {loss.item():.3f} pid {os.getpid()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
