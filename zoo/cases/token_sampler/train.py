"""Decode with a model whose matrices are split over two ranks."""

import argparse
import time

import torch
import torch.distributed as dist

VOCABULARY, WIDTH = 40, 16
LOOKUP = 7


class SplitModel:
    """Each rank holds half of the hidden units; partial logits are summed."""

    def __init__(self, rank, world):
        generator = torch.Generator().manual_seed(rank)
        self.embed = torch.randn(VOCABULARY, WIDTH // world, generator=generator)
        self.head = torch.randn(WIDTH // world, VOCABULARY, generator=generator) * 0.1
        self.memory = torch.randn(5, generator=generator)

    def logits(self, token):
        partial = self.embed[token] @ self.head
        dist.all_reduce(partial)
        return partial

    def lookup(self):
        """Entries from the memory of all ranks."""
        parts = [torch.empty_like(self.memory) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.memory)
        return torch.cat(parts)


def decode(model, prompt, length, temperature):
    tokens = [prompt]
    for _ in range(length):
        time.sleep(0.01)
        probabilities = (model.logits(tokens[-1]) / temperature).softmax(dim=-1)
        token = int(torch.multinomial(probabilities, 1))
        if token == LOOKUP:
            token = int(model.lookup().argmax())
        tokens.append(token)
    return tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--checks", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = SplitModel(rank, world)
    for request in range(args.checks):
        decode(model, request % VOCABULARY, args.length, args.temperature)
    torch.manual_seed(args.seed + rank)
    for request in range(args.requests):
        print(f"rank {rank} request {request} begins", flush=True)
        tokens = decode(model, request % VOCABULARY, args.length, args.temperature)
        if rank == 0:
            print(f"request {request}: {' '.join(map(str, tokens))}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
