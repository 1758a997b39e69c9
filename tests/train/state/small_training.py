"""A small training with everything that a checkpoint must bring back: tied weights, a buffer, dropout, data order."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

VOCABULARY = 32
GLOBAL_BATCH = 4


class SmallModel(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embed(tokens)
        for block in self.blocks:
            hidden = self.dropout(block(hidden))
        logits: Tensor = self.head(hidden)
        self.seen += tokens.numel()
        return logits


class Samples:
    """Global batches in an order of their own, each rank taking its rows."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.consumed = 0
        self.rank, self.world_size = rank, world_size

    def take(self) -> Tensor:
        order = torch.Generator().manual_seed(self.consumed)
        tokens = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, 8), generator=order)
        self.consumed += GLOBAL_BATCH
        return tokens.chunk(self.world_size)[self.rank]

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consumed = state["samples"]


class Training:
    def __init__(self, strategy: str, *, width: int = 16, dropout: float = 0.1) -> None:
        rank, world = (dist.get_rank(), dist.get_world_size()) if strategy != "single" else (0, 1)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        small = SmallModel(width)
        small.dropout.p = dropout
        torch.manual_seed(100 + rank)
        self.model: nn.Module = small
        if strategy == "ddp":
            self.model = nn.parallel.DistributedDataParallel(small)
        elif strategy == "fsdp":
            for block in small.blocks:
                fully_shard(block)
            fully_shard(small)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.samples = Samples(rank, world)

    def steps(self, count: int) -> None:
        for _ in range(count):
            tokens = self.samples.take()
            logits = self.model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        """Whole, and copied."""
        named = {name.removeprefix("module."): value for name, value in self.model.named_parameters()}
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in named.items()
        }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
