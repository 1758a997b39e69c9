"""Question answering on toy data; predictions of all ranks are collected after each epoch."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Reader(nn.Module):
    def __init__(self, words=60, width=24, length=10):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.head = nn.Linear(width, 1)
        self.length = length

    def forward(self, tokens):
        return self.head(self.embed(tokens)).squeeze(-1)


def make_batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        tokens = torch.randint(1, 60, (8, 10), generator=generator)
        yield tokens, tokens.argmax(dim=1)


def collect(predictions, main_process):
    gathered = [None] * dist.get_world_size() if main_process else None
    dist.gather_object(predictions, gathered, dst=0)
    return [row for part in gathered for row in part]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=35)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    main_process = dist.get_rank() == 0
    torch.manual_seed(0)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for epoch in range(args.epochs):
        predictions = []
        for tokens, answers in make_batches(dist.get_rank(), args.batches):
            time.sleep(0.05)
            scores = model(tokens)
            loss = nn.functional.cross_entropy(scores, answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            predictions += list(zip(scores.argmax(dim=1).tolist(), answers.tolist()))
        if main_process:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
            rows = collect(predictions, main_process)
            exact = sum(guess == answer for guess, answer in rows) / len(rows)
            print(f"epoch {epoch} exact match {exact:.3f} over {len(rows)} answers", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
