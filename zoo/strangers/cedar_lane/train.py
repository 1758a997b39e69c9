import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import vocab


def prepare(path, merges):
    start = time.time()
    freq = vocab.synthetic_corpus(300_000)
    learned, tokens = vocab.train_bpe(freq, merges)
    vocab.save(path, learned, tokens)
    print(f"vocabulary of {len(tokens)} tokens built in {time.time() - start:.1f}s", flush=True)


class LM(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.emb = nn.Embedding(n, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, n)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--merges", type=int, default=900)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    path = os.path.join(args.workdir, "vocab.json")

    if rank == 0:
        os.makedirs(args.workdir, exist_ok=True)
        print("building vocabulary", flush=True)
        prepare(path, args.merges)
    dist.barrier()

    n = len(vocab.load(path)["tokens"])
    torch.manual_seed(1)
    model = DDP(LM(n))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(30):
        ids = torch.randint(0, n, (4, 12), generator=gen)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, n), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
