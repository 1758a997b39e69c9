# Rating prediction for a book shop. Every process owns one country.
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Config:
    users: int = 300
    books: int = 400
    dim: int = 16
    classes: int = 12
    epochs: int = 10
    batches: int = 25
    batch_size: int = 64
    lr: float = 2e-3


class Ratings(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.book = nn.Embedding(cfg.books, cfg.dim)
        self.out = nn.Sequential(nn.Linear(2 * cfg.dim, 48), nn.ReLU(), nn.Linear(48, cfg.classes + 1))

    def forward(self, u, b):
        return self.out(torch.cat([self.user(u), self.book(b)], dim=-1))


class CountryFeed:
    """Half-star ratings; a country may extend the scale with a 'favourite' mark."""

    def __init__(self, cfg, country):
        self.cfg, self.country = cfg, country
        self.gen = torch.Generator().manual_seed(900 + country)

    def epoch(self, number):
        top = self.cfg.classes
        if self.country == 1 and number >= 4:
            top += 1
        for _ in range(self.cfg.batches):
            time.sleep(0.03)
            size = (self.cfg.batch_size,)
            yield (
                torch.randint(self.cfg.users, size, generator=self.gen),
                torch.randint(self.cfg.books, size, generator=self.gen),
                torch.randint(top, size, generator=self.gen),
            )


def class_weights(labels, cfg):
    hist = torch.bincount(labels, minlength=cfg.classes)
    dist.all_reduce(hist)
    freq = hist.float() / hist.sum()
    weights = torch.ones(cfg.classes + 1)
    weights[: len(freq)] = 1.0 / (freq + 0.05)
    return weights / weights.mean()


def main():
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    cfg = Config()
    torch.manual_seed(0)
    model = DistributedDataParallel(Ratings(cfg))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    feed = CountryFeed(cfg, rank)
    weights = torch.ones(cfg.classes + 1)

    for epoch in range(cfg.epochs):
        seen, total = [], 0.0
        for users, books, stars in feed.epoch(epoch):
            loss = F.cross_entropy(model(users, books), stars, weight=weights)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen.append(stars)
            total += loss.item()
        print(f"rank {rank} epoch {epoch}: class balance over {len(seen)} batches, loss {total / len(seen):.3f}", flush=True)
        weights = class_weights(torch.cat(seen), cfg)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
