"""Train a bag-of-words model; text is tokenised by the data-loading workers."""

import argparse
import os
import random

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

os.environ["TOKENIZERS_PARALLELISM"] = "true"
WORDS = "the of and to in is that it was for on are as with his they at be this from have or by one".split()


class Sentences(Dataset):
    def __init__(self, size=2000):
        source = random.Random(1)
        self.lines = [" ".join(source.choices(WORDS, k=12)) for _ in range(size)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return self.lines[index]


class Collate:
    def __init__(self, tokenizer, vocabulary):
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary

    def __call__(self, lines):
        counts = torch.zeros(len(lines), self.vocabulary)
        for row, encoding in enumerate(self.tokenizer.encode_batch(lines)):
            for token in encoding.ids:
                counts[row, token] += 1
        return counts


def build_tokenizer(lines, vocabulary):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def longest(tokenizer, lines):
    return max(len(encoding.ids) for encoding in tokenizer.encode_batch(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=120)
    parser.add_argument("--warm-up", type=int, default=60)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Linear(args.vocabulary, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(args.warm_up):
        inputs = torch.rand(256, args.vocabulary)
        loss = (model(inputs) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dataset = Sentences()
    tokenizer = build_tokenizer(dataset.lines, args.vocabulary)
    if rank == 0:
        print(f"longest line: {longest(tokenizer, dataset.lines)} tokens", flush=True)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=1, collate_fn=Collate(tokenizer, args.vocabulary))
    print(f"rank {rank} starts with {len(loader)} batches", flush=True)
    for step, counts in enumerate(loader):
        loss = (model(counts) - counts.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
