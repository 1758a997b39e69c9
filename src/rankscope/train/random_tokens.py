"""Batches of random tokens, for measuring speed without any data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RandomBatch:
    step: int
    inputs: Tensor
    targets: Tensor
    sample_ids: Tensor


class RandomTokens:
    """Gives the same global order of samples to any number of ranks, as the loader of prepared data does."""

    def __init__(
        self,
        *,
        vocabulary: int,
        context_length: int,
        extra: int,
        batch_size: int,
        grad_accum_nums: int,
        rank: int,
        world_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._vocabulary = vocabulary
        self._length = context_length
        self._extra = extra
        self._batch_size = batch_size
        self._accumulate = grad_accum_nums
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._device = device
        self._micro = 0

    def __iter__(self) -> Iterator[RandomBatch]:
        while True:
            yield self._next()

    def _next(self) -> RandomBatch:
        step, micro = divmod(self._micro, self._accumulate)
        per_rank = self._batch_size * self._accumulate
        first = step * per_rank * self._world_size + self._rank * per_rank + micro * self._batch_size
        ids = torch.arange(first, first + self._batch_size)
        rows = []
        for sample in ids.tolist():
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + sample)
            rows.append(torch.randint(self._vocabulary, (self._length + 1 + self._extra,), generator=generator))
        tokens = torch.stack(rows)
        if self._device.type == "cuda":
            tokens = tokens.pin_memory().to(self._device, non_blocking=True)
        self._micro += 1
        return RandomBatch(step, tokens[:, : self._length].contiguous(), tokens[:, 1:].contiguous(), ids)

    def state_dict(self) -> dict[str, Any]:
        """Whole steps only."""
        return {"samples": self._micro // self._accumulate * self._accumulate * self._batch_size * self._world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._micro = int(state["samples"]) // (self._batch_size * self._world_size)

    def close(self) -> None:
        """Nothing is open."""
