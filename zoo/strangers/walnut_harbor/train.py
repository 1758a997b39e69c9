"""Next-token model on short reviews; batches are packed up to a token budget."""
import datetime
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = 0


@dataclass
class Config:
    sentences: int = 1800
    vocab: int = 64
    width: int = 16
    budget: int = 96
    epochs: int = 2
    lr: float = 3e-3
    pause: float = 0.03


class Reviews(Dataset):
    """Token ids with the long-tailed lengths of user reviews."""

    def __init__(self, cfg, seed):
        rng = np.random.default_rng(seed)
        self.lengths = np.clip(rng.lognormal(2.4, 0.55, cfg.sentences), 4, 60).astype(int)
        self.tokens = [torch.as_tensor(rng.integers(1, cfg.vocab, n)) for n in self.lengths]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i]


class BudgetBatches:
    """Groups what the sampler hands out so that padded batches stay within the budget."""

    def __init__(self, sampler, lengths, budget):
        self.sampler = sampler
        self.lengths = lengths
        self.budget = budget

    def __iter__(self):
        batch, longest = [], 0
        for index in self.sampler:
            longest = max(longest, int(self.lengths[index]))
            if batch and longest * (len(batch) + 1) > self.budget:
                yield batch
                batch, longest = [], int(self.lengths[index])
            batch.append(index)
        if batch:
            yield batch


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.width, padding_idx=PAD)
        self.mix = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.out = nn.Linear(cfg.width, cfg.vocab)

    def forward(self, ids):
        hidden, _ = self.mix(self.emb(ids))
        return self.out(hidden)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        data = Reviews(cfg, seed=13)
        self.sampler = DistributedSampler(data, seed=8, drop_last=True)
        batches = BudgetBatches(self.sampler, data.lengths, cfg.budget)
        self.loader = DataLoader(data, batch_sampler=batches, collate_fn=collate, num_workers=1)
        self.model = DDP(TinyLM(cfg))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.step = 0

    def train_step(self, ids):
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return float(loss.detach())

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        running = []
        for ids in self.loader:
            print(f"[{self.rank}] step {self.step} tokens {ids.numel()}", flush=True)
            time.sleep(self.cfg.pause)
            running.append(self.train_step(ids))
            self.step += 1
        return sum(running) / len(running)

    def close_epoch(self, epoch, mean_loss):
        dist.monitored_barrier(timeout=datetime.timedelta(minutes=20))
        board = [None] * dist.get_world_size()
        dist.all_gather_object(board, {"epoch": epoch, "loss": mean_loss, "steps": self.step})
        if self.rank == 0:
            print("epoch summary", board, flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    cfg = Config()
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        mean_loss = trainer.run_epoch(epoch)
        trainer.close_epoch(epoch, mean_loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
