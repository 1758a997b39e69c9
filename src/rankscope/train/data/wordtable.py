"""A table from short byte strings to token ids that answers for hundreds of thousands of them at once.

Text repeats its words: after a few megabytes nearly all pieces of a text are known, and encoding is looking up. Pieces
of up to 15 bytes are two 64-bit numbers, compared exactly; longer ones are few and go through a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[Sequence[bytes]], Sequence[Sequence[int]]]

_Number = TypeVar("_Number", bound=np.generic)

SHORT = 15
_SLOTS = 1 << 19
_MOST_WORDS = _SLOTS // 2
_MOST_POOL = 1 << 22
_SPREAD_LOW = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_HIGH = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(64 - 19)


class WordTable:
    """Ids of pieces, `encode` being asked once for each new one. Takes about 80 MB at most, whatever is asked."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._clear()

    def _clear(self) -> None:
        self._low = np.zeros(_SLOTS, dtype=np.uint64)
        self._high = np.zeros(_SLOTS, dtype=np.uint64)
        self._word = np.full(_SLOTS, -1, dtype=np.int32)
        self._begin: NDArray[np.int64] = np.zeros(1024, dtype=np.int64)
        self._count: NDArray[np.int64] = np.zeros(1024, dtype=np.int64)
        self._pool: NDArray[np.uint32] = np.zeros(4096, dtype=np.uint32)
        self._words = 0
        self._used = 0
        self._long: dict[bytes, int] = {}

    def ids(self, block: bytes, starts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Ids of the pieces of `block` that begin at `starts`, one after the other."""
        if not len(starts):
            return np.zeros(0, dtype=np.uint32)
        if self._words > _MOST_WORDS or self._used > _MOST_POOL:
            self._clear()
        lengths = np.diff(np.append(starts, len(block)))
        words = np.empty(len(starts), dtype=np.int64)
        is_short = lengths <= SHORT
        short = np.flatnonzero(is_short)
        low, high = _keys(block, starts[short], lengths[short])
        words[short] = self._find(low, high)
        self._learn_short(block, starts, lengths, short[words[short] < 0], words)
        self._look_up_long(block, starts, lengths, np.flatnonzero(~is_short), words)
        return self._spell(words)

    def _find(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Word numbers; -1 for the unknown."""
        slot = _slot(low, high)
        found = self._word[slot].astype(np.int64)
        open_ = np.flatnonzero((found >= 0) & ((self._low[slot] != low) | (self._high[slot] != high)))
        while len(open_):
            slot_open = (slot[open_] + 1) % _SLOTS
            slot[open_] = slot_open
            found[open_] = self._word[slot_open]
            differs = (self._low[slot_open] != low[open_]) | (self._high[slot_open] != high[open_])
            open_ = open_[(found[open_] >= 0) & differs]
        return found

    def _learn_short(
        self,
        block: bytes,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        missing: NDArray[np.int64],
        words: NDArray[np.int64],
    ) -> None:
        if not len(missing):
            return
        begins = starts[missing].tolist()
        ends = (starts[missing] + lengths[missing]).tolist()
        pieces = [block[begin:end] for begin, end in zip(begins, ends, strict=True)]
        numbers = self._learn(dict.fromkeys(pieces))
        words[missing] = [numbers[piece] for piece in pieces]
        new = list(numbers)
        low, high = _keys(b"".join(new), _offsets(new), np.array([len(piece) for piece in new], dtype=np.int64))
        self._place(low, high, np.fromiter(numbers.values(), dtype=np.int32, count=len(numbers)))

    def _place(self, low: NDArray[np.uint64], high: NDArray[np.uint64], numbers: NDArray[np.int32]) -> None:
        """Puts new words into free slots: of those that want the same one, the first gets it and the others go on."""
        slot = _slot(low, high)
        waiting = np.arange(len(slot))
        while len(waiting):
            free = waiting[self._word[slot[waiting]] < 0]
            _, firsts = np.unique(slot[free], return_index=True)
            placed = free[firsts]
            taken = slot[placed]
            self._low[taken], self._high[taken], self._word[taken] = low[placed], high[placed], numbers[placed]
            waiting = np.setdiff1d(waiting, placed, assume_unique=True)
            slot[waiting] = (slot[waiting] + 1) % _SLOTS

    def _look_up_long(
        self,
        block: bytes,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        long: NDArray[np.int64],
        words: NDArray[np.int64],
    ) -> None:
        if not len(long):
            return
        begins = starts[long].tolist()
        ends = (starts[long] + lengths[long]).tolist()
        pieces = [block[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self._long.update(self._learn({piece: None for piece in pieces if piece not in self._long}))
        words[long] = [self._long[piece] for piece in pieces]

    def _learn(self, pieces: dict[bytes, None]) -> dict[bytes, int]:
        """Numbers of new words, whose ids are now in the pool."""
        encoded = self._encode(list(pieces)) if pieces else []
        numbers: dict[bytes, int] = {}
        counts = np.array([len(ids) for ids in encoded], dtype=np.int64)
        first, total = self._words, int(counts.sum())
        self._begin = _room(self._begin, first + len(counts))
        self._count = _room(self._count, first + len(counts))
        self._pool = _room(self._pool, self._used + total)
        self._count[first : first + len(counts)] = counts
        self._begin[first : first + len(counts)] = self._used + np.cumsum(counts) - counts
        self._pool[self._used : self._used + total] = [each for ids in encoded for each in ids]
        for piece in pieces:
            numbers[piece] = first + len(numbers)
        self._words += len(counts)
        self._used += total
        return numbers

    def _spell(self, words: NDArray[np.int64]) -> NDArray[np.uint32]:
        counts = self._count[words]
        ends = np.cumsum(counts)
        places = np.repeat(self._begin[words] - (ends - counts), counts)
        places += np.arange(len(places))
        spelled: NDArray[np.uint32] = self._pool[places]
        return spelled


def _keys(
    block: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Each piece as two numbers: its bytes, zeros after its end, and its length on top."""
    padded = block + bytes(16)
    at_each = np.ndarray(len(padded) - 7, dtype="<u8", buffer=padded, strides=(1,))
    low = at_each[starts].astype(np.uint64)
    high = at_each[starts + 8].astype(np.uint64)
    low &= _MASK[np.minimum(lengths, 8)]
    high &= _MASK[np.maximum(lengths - 8, 0)]
    high |= lengths.astype(np.uint64) << np.uint64(56)
    return low, high


_MASK = np.array([(1 << (8 * length)) - 1 for length in range(9)], dtype=np.uint64)


def _slot(low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int64]:
    mixed = (low * _SPREAD_LOW) ^ (high * _SPREAD_HIGH)
    mixed ^= mixed >> np.uint64(29)
    slot: NDArray[np.int64] = ((mixed * _SPREAD_LOW) >> _SHIFT).astype(np.int64)
    return slot


def _offsets(pieces: Sequence[bytes]) -> NDArray[np.int64]:
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return np.cumsum(lengths) - lengths


def _room(array: NDArray[_Number], size: int) -> NDArray[_Number]:
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
