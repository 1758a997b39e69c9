"""Language-aware classifier; the next batch is prepared in a thread while the device works."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 330
PER_SHARD = 30
LANGUAGES = "en de fr es it pt nl sv da nb fi pl cs sk hu ro el tr id vi tl ms".split()
LANGUAGE_ID = {code: number for number, code in enumerate(LANGUAGES)}
# What the index of the corpus says about its shards.
SHARD_LANGUAGE = "en en de en fr es en it pt en nl sv en da fi pl cs fil tr en id vi ms".split()


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", 0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.language = nn.Embedding(len(LANGUAGES), 32)
        self.body = nn.Sequential(nn.Linear(64 + 32, 128), nn.ReLU(), nn.Linear(128, 5))

    def forward(self, features, language):
        return self.body(torch.cat([features, self.language(language)], dim=1))


class Corpus:
    def __init__(self, rank):
        self.rank = rank

    def header(self, shard):
        code = SHARD_LANGUAGE[(5 * self.rank + shard) % len(SHARD_LANGUAGE)]
        return {"language": code, "name": f"{self.rank:02d}-{shard:04d}"}

    def language_of(self, shard):
        return LANGUAGE_ID[self.header(shard)["language"]]

    def batch(self, step):
        shard, row = divmod(step, PER_SHARD)
        if row == 0:
            print(f"rank {self.rank} opens shard {shard}", flush=True)
        time.sleep(0.02)
        generator = torch.Generator().manual_seed(step * 100 + self.rank)
        features = torch.randn(24, 64, generator=generator)
        language = torch.full((24,), self.language_of(shard))
        return features, language, features[:, :5].argmax(dim=1)


def main():
    rank, device = connect()
    torch.manual_seed(1)
    model = DistributedDataParallel(Tagger().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    corpus = Corpus(rank)
    reader = ThreadPoolExecutor(max_workers=1)
    upcoming = reader.submit(corpus.batch, 0)
    for step in range(STEPS):
        features, language, labels = (t.to(device) for t in upcoming.result())
        if step + 1 < STEPS:
            upcoming = reader.submit(corpus.batch, step + 1)
        loss = nn.functional.cross_entropy(model(features, language), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.012)  # bookkeeping
    reader.shutdown()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
