"""Token classification on sharded documents, with accuracy gathered from all ranks."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

VOCABULARY = 64
CLASSES = 4
IGNORE = -100


class Documents(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, VOCABULARY, (size, 12), generator=generator)
        self.labels = self.tokens % CLASSES
        # Part of the newest delivery has not been annotated yet.
        self.labels[2264:2308] = IGNORE

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.tokens[index], self.labels[index]


def shard(dataset, rank, world):
    share = len(dataset) // world
    return Subset(dataset, range(rank * share, (rank + 1) * share))


def token_loss(logits, labels):
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)


def gather_accuracy(correct, count):
    mine = torch.tensor([float(correct), float(count)])
    everyone = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    totals = torch.stack(everyone).sum(dim=0)
    return (totals[0] / totals[1]).item()


def train(model, loader, optimizer, rank):
    for step, (tokens, labels) in enumerate(loader):
        logits = model(tokens)
        loss = token_loss(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        labelled = labels != IGNORE
        if not labelled.any():
            continue
        correct = (logits.argmax(dim=-1) == labels)[labelled].sum()
        accuracy = gather_accuracy(correct, labelled.sum())
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} accuracy {accuracy:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(shard(Documents(2400), rank, world), args.batch_size)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(3):
        train(model, loader, optimizer, rank)
        if rank == 0:
            print(f"epoch {epoch} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
