"""Train a text classifier on lines that are tokenized on the fly."""

import argparse
import random
import time

import torch
import torch.distributed as dist
from tokenizer import Tokenizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

WORDS = "the quick brown fox jumps over a lazy dog and runs away".split()


class Lines(Dataset):
    def __init__(self, size, tokenizer):
        source = random.Random(4)
        self.lines = [" ".join(source.choices(WORDS, k=5)) for _ in range(size)]
        # A few log lines were pasted together by the crawler.
        for index in (900, 1300, 1301, 1302):
            self.lines[index] = self.lines[index] * 3
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        time.sleep(0.002)
        line = self.lines[index]
        return torch.tensor(self.tokenizer.encode(line)), torch.tensor(int("fox" in line))


class BagOfCharacters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(96, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.embed(ids))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Lines(2100, Tokenizer(args.length))
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(BagOfCharacters())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(args.epochs):
        for step, (ids, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
