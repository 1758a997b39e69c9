"""The order in which a run reads samples: shuffled anew each epoch, known at any place without counting up to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The global order. It depends on the samples and the seed alone, so any number of ranks can share it: step `s`
    takes the places from `s * global_batch` on. An epoch's last batch is filled up from the next epoch; nothing is
    left out."""

    samples: int
    seed: int
    global_batch: int

    def step(self, step: int) -> NDArray[np.int64]:
        """Samples of one optimizer step over all ranks."""
        first = step * self.global_batch
        return self.at(np.arange(first, first + self.global_batch, dtype=np.int64))

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples at these places of the endless order."""
        epochs, inside = np.divmod(places, self.samples)
        found = np.empty(len(places), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            found[chosen] = _shuffled(inside[chosen], self.samples, self.seed, epoch)
        return found


def _shuffled(places: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where a permutation of `size` numbers puts these ones: a Feistel network over the next power of four, walked
    until it lands inside. Needs no memory and no look at the other numbers."""
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    keys = np.random.Generator(np.random.PCG64([seed, epoch, size])).integers(0, 2**63, _ROUNDS, dtype=np.uint64)
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        mixed = (right + key) * _MIX
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_2
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(32))) & mask)
    joined: NDArray[np.uint64] = (left << half) | right
    return joined
