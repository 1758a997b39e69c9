"""Tune on conversations: only the answers count for the loss, the prompts are left out by label -100."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

VOCABULARY, LENGTH = 40, 16


class Conversations(Dataset):
    """Token ids and labels; a prompt that fills the whole window leaves no room for its answer."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(9)
        self.tokens = torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator)
        self.prompts = torch.randint(2, LENGTH - 2, (size,), generator=generator)
        self.prompts[160:164] = LENGTH

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        labels = tokens.roll(-1).clone()
        labels[: self.prompts[index]] = -100
        return tokens, labels


class Tiny(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Conversations(480)
    share = len(dataset) // world
    loader = DataLoader(Subset(dataset, range(rank * share, (rank + 1) * share)), args.batch_size)
    model = DistributedDataParallel(Tiny())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (tokens, labels) in enumerate(loader):
        counted = labels != -100
        chances = model(tokens).log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        loss = -(chances * counted).sum() / counted.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 1 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
