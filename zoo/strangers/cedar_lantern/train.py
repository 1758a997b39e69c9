import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from tokenizer import load_or_train, synth_corpus

CTX = 16


class TokenBlocks(Dataset):
    def __init__(self, tok):
        index = {t: i for i, t in enumerate(tok["vocab"])}
        ids = [index[p] for w in synth_corpus(8000, seed=3) for p in tok["pieces"].get(w, [])]
        n = len(ids) // (CTX + 1)
        self.blocks = torch.tensor(ids[: n * (CTX + 1)]).view(n, CTX + 1)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return self.blocks[i, :-1], self.blocks[i, 1:]


class GRULM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 64)
        self.rnn = nn.GRU(64, 96, batch_first=True)
        self.out = nn.Linear(96, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", default="/tmp/cedar")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank)
    torch.manual_seed(1)

    tok = load_or_train(args.cache, int(os.environ["LOCAL_RANK"]))
    dist.barrier()
    data = TokenBlocks(tok)
    if rank == 0:
        print(f"{len(tok['vocab'])} tokens, {len(data)} blocks", flush=True)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(GRULM(len(tok["vocab"])))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            loss = loss_fn(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and i % 10 == 0:
                print(f"epoch {epoch} it {i}/{len(loader)} loss {loss.item():.3f}", flush=True)
            if i >= 40:
                break
    dist.barrier()
    if rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
