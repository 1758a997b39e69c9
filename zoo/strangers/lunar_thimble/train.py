"""Protein secondary-structure tagger; shards are uneven by nature."""
import os
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

SHARD_BATCHES = {0: 40, 1: 52, 2: 61}
RESIDUES, CLASSES = 21, 3


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(RESIDUES, dim)
        self.mix = nn.Conv1d(dim, dim, 5, padding=2)
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, seq):
        h = self.emb(seq).transpose(1, 2)
        return self.out(torch.relu(self.mix(h)).transpose(1, 2))


def shard(rank):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(SHARD_BATCHES[rank]):
        seq = torch.randint(0, RESIDUES, (8, 60), generator=gen)
        yield seq, (seq // 7).clamp(max=CLASSES - 1)
        if rank == 2:
            time.sleep(0.15)  # this shard lives on the archive disk


@contextmanager
def phase(name, rank):
    t0 = time.time()
    yield
    print(f"[{rank}] {name} took {time.time() - t0:.1f}s", flush=True)


def grad_norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()


def main():
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    model = DDP(Tagger())
    opt = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.5)
    skipped = done = 0
    print(f"[{rank}] {SHARD_BATCHES[rank]} batches in this shard", flush=True)

    with phase("training", rank), Join([model]):
        for seq, tags in shard(rank):
            loss = nn.functional.cross_entropy(model(seq).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            # gradients are already averaged here, so every rank decides alike
            if grad_norm(model) < 0.02:
                skipped += 1
            else:
                opt.step()
            done += 1
            time.sleep(0.1)
            if done % 20 == 0:
                print(f"[{rank}] {done} batches loss {loss.item():.3f} skipped {skipped}", flush=True)

    with phase("scoring", rank), torch.no_grad():
        hits = torch.zeros(2)
        for seq, tags in shard(rank):
            hits += torch.tensor([(model.module(seq).argmax(-1) == tags).sum(), tags.numel()])
        dist.all_reduce(hits)
    if rank == 0:
        print(f"accuracy {hits[0] / hits[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
