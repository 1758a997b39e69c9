"""Byte-pair language model on recipes. The merged vocabulary is built once per machine and cached on disk."""
import argparse
import collections
import contextlib
import fcntl
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS = "stir whisk fold bake simmer onion garlic butter flour sugar salt oven pan slowly until golden add the and".split()


@contextlib.contextmanager
def machine_lock(path):
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def corpus(seed, n):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield " ".join(WORDS[i] for i in torch.randint(len(WORDS), (12,), generator=g).tolist())


def build_merges(shards, pause):
    pairs = collections.Counter()
    for shard in range(shards):
        for line in corpus(shard, 40):
            pairs.update(zip(line, line[1:]))
        time.sleep(pause)               # shards live on slow storage
    return ["".join(p) for p, _ in pairs.most_common(60)]


def load_merges(folder, shards, pause, rank):
    cache = os.path.join(folder, "merges.json")
    with machine_lock(cache + ".lock"):
        if not os.path.exists(cache):
            merges = build_merges(shards, pause)
            with open(cache + ".part", "w") as f:
                json.dump(merges, f)
            os.replace(cache + ".part", cache)
            print(f"[{rank}] vocabulary built", flush=True)
        with open(cache) as f:
            return json.load(f)


class Encoder:
    def __init__(self, merges):
        self.ids = {m: i + 1 for i, m in enumerate(merges)}

    def __call__(self, line, length=24):
        ids, i = [], 0
        while i < len(line) and len(ids) < length:
            ids.append(self.ids.get(line[i:i + 2], 0))
            i += 2
        return torch.tensor(ids + [0] * (length - len(ids)))


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", default=None)
    ap.add_argument("--shards", type=int, default=28)
    ap.add_argument("--pause", type=float, default=0.5)
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = args.cache
    if folder is None:
        box = [tempfile.mkdtemp(prefix="recipes-")] if rank == 0 else [None]
        dist.broadcast_object_list(box, src=0)
        folder = box[0]
    print(f"[{rank}] loading vocabulary", flush=True)
    merges = load_merges(folder, args.shards, args.pause, rank)
    encode = Encoder(merges)
    torch.manual_seed(0)
    model = DDP(TinyLM(len(merges) + 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lines = corpus(500 + rank, args.steps * 4)
    for step in range(args.steps):
        ids = torch.stack([encode(next(lines)) for _ in range(4)])
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.03)
        if step % 40 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
