"""Train on documents of very different length, with as few pieces per batch as memory allows."""

import argparse
import time

import torch
import torch.distributed as dist
from autotune import fit_to_memory
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Documents:
    """Token batches padded to their longest document."""

    def __init__(self, rank, batches, batch_size=8):
        generator = torch.Generator().manual_seed(40 + rank)
        self.lengths = torch.randint(16, 64, (batches,), generator=generator).tolist()
        if rank == 1:
            self.lengths[38] = 4096
        self.batch_size = batch_size

    def __iter__(self):
        for length in self.lengths:
            time.sleep(0.05)
            yield torch.randint(0, 100, (self.batch_size, length))


def attention_bytes(tokens):
    return tokens.shape[0] * tokens.shape[1] ** 2 * 4


class Tagger(nn.Module):
    def __init__(self, budget):
        super().__init__()
        self.budget = budget
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100)

    def forward(self, tokens):
        needed = attention_bytes(tokens)
        if needed > self.budget:
            raise MemoryError(f"attention needs {needed >> 20} MiB, {self.budget >> 20} MiB are allowed")
        vectors = self.embed(tokens)
        scores = torch.softmax(vectors @ vectors.transpose(1, 2), dim=-1)
        return self.head(scores @ vectors)


@fit_to_memory
def train_step(model, optimizer, tokens, pieces):
    optimizer.zero_grad()
    for piece in tokens.chunk(pieces):
        logits = model(piece)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), piece.flatten()) / pieces
        loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--budget-mib", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger(args.budget_mib << 20))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(Documents(rank, args.batches)):
        loss = train_step(model, optimizer, tokens)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
