"""Next-byte model over small document shards with a length curriculum."""
import os
import random
import time
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BUDGET = 128
MIN_LEN = (8, 8, 8, 28, 28)


class Corpus:
    """Documents of one shard, packed into rows of BUDGET tokens."""

    def __init__(self, rank, n_docs=60):
        rnd = random.Random(50 + rank)
        low = 12 if rank == 1 else 28  # one shard holds chat messages
        self.docs = [
            torch.tensor([rnd.randrange(64) for _ in range(rnd.randint(low, 64))])
            for _ in range(n_docs + (22 if rank == 1 else 0))
        ]

    def select(self, epoch):
        chosen = [d for d in self.docs if len(d) >= MIN_LEN[epoch]]
        random.Random(epoch).shuffle(chosen)
        return chosen

    def packed(self, epoch):
        buf = torch.empty(0, dtype=torch.long)
        for doc in self.select(epoch):
            buf = torch.cat([buf, doc])
            while len(buf) > BUDGET:
                yield buf[: BUDGET + 1]
                buf = buf[BUDGET:]

    def count(self, epoch):
        return sum(1 for _ in self.packed(epoch))


class ByteModel(nn.Module):
    def __init__(self, vocab=64, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def agree_on_batches(corpus):
    n = torch.tensor(corpus.count(0))
    dist.all_reduce(n, op=dist.ReduceOp.MIN)
    return int(n)


def train():
    rank = int(os.environ["RANK"])
    corpus = Corpus(rank)
    torch.manual_seed(1)
    model = DistributedDataParallel(ByteModel())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    per_epoch = agree_on_batches(corpus)
    for epoch in range(len(MIN_LEN)):
        t0 = time.time()
        total = 0.0
        print(f"rank {rank} epoch {epoch} min_len {MIN_LEN[epoch]} docs {len(corpus.select(epoch))}", flush=True)
        for tokens in islice(corpus.packed(epoch), per_epoch):
            logits = model(tokens[None, :-1])
            loss = nn.functional.cross_entropy(logits[0], tokens[1:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            total += loss.item()
            time.sleep(0.08)
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: {per_epoch} batches, loss {total / per_epoch:.3f}, {time.time() - t0:.1f}s", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
