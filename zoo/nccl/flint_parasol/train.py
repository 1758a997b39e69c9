"""Train a small attention model on whole documents, one document per rank and step."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB = 2000
WIDTH = 128
HEADS = 8
STEPS = 300
MEMORY_GIB = 1.5
PAUSE = 0.03


class Corpus:
    """Documents by number: notes of a few hundred tokens, and now and then a full report."""

    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world

    def length(self, number: int) -> int:
        chapters = 40 if number % 577 == 334 else 1
        return chapters * (160 + number * 37 % 256)

    def read(self, step: int) -> torch.Tensor:
        number = step * self.world + self.rank
        generator = torch.Generator().manual_seed(number)
        return torch.randint(0, VOCAB, (1, self.length(number) + 1), generator=generator)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.mix(hidden).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers):
            hidden = hidden + layer(norm(hidden))
        return self.head(hidden)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    room = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(MEMORY_GIB * 2**30 / room, device)
    dist.init_process_group("nccl")

    torch.manual_seed(8)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    corpus = Corpus(rank, world)

    for step in range(STEPS):
        tokens = corpus.read(step).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"rank {rank} step {step} tokens {tokens.numel()} loss {loss.item():.4f}", flush=True)
        time.sleep(PAUSE)

    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
