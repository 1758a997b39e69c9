"""A mixture of experts whose weights are kept in shards and gathered before an expert runs."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, EXPERTS = 12, 3


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.shard = torch.randn(WIDTH // dist.get_world_size(), WIDTH)

    def forward(self, tokens):
        parts = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.shard)
        return torch.tanh(tokens @ torch.cat(parts).T)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = [Expert() for _ in range(EXPERTS)]
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        weights, choice = self.router(tokens).softmax(dim=-1).max(dim=-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(-1)
            if rows.numel() == 0:
                continue
            mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weights[rows, None])
        return self.head(mixed)


def read_tokens(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    tokens = torch.randn(48, WIDTH, generator=generator)
    if rank == 1 and step == 33:
        tokens = tokens[:1].repeat(48, 1)  # a page that repeats one line
    return tokens, (tokens.sum(dim=1) > 0).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DistributedDataParallel(Mixture())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        time.sleep(0.05)
        tokens, labels = read_tokens(rank, step)
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
