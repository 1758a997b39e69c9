"""One number for one stage, whichever rank passes it: what only some ranks do must not shift the others' count.

A rank counts its own stages; rank 0, which alone makes a run of W&B or a directory, would be ahead of the others ever
after. Here the k-th "DDP ready" of every rank has the same number, given when the first rank passes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from rankscope.evidence.model import Stage

_MOST_KEPT = 5000
"""Stages that some ranks have passed and others never will, as each checkpoint of rank 0: the oldest are forgotten."""

_Key = tuple[str, str, str, int]


class SharedNumbers(msgspec.Struct):
    """The numbers given so far, to ranks of one attempt."""

    ranks: int
    last: int = 0
    _given: dict[_Key, int] = msgspec.field(default_factory=dict)
    _waiting: dict[_Key, int] = msgspec.field(default_factory=dict)
    """Ranks that have not passed it yet."""
    _times: dict[int, dict[tuple[str, str, str], int]] = msgspec.field(default_factory=dict)
    """How often each rank has passed each stage."""

    def number(self, rank: int, stage: Stage) -> int:
        """Of a stage that the rank has passed: asked once for each, in the order of time."""
        key = self._next(rank, stage)
        self._times.setdefault(rank, {})[key[:3]] = key[3]
        number = self._given.get(key)
        if number is None:
            self.last += 1
            number = self._given[key] = self.last
            self._waiting[key] = self.ranks
            if len(self._given) > _MOST_KEPT:
                self._forget(next(iter(self._given)))
        self._waiting[key] -= 1
        if self._waiting[key] <= 0:
            self._forget(key)
        return number

    def expected(self, rank: int, stage: Stage) -> int:
        """Of a stage that the rank is in: the number it will have, or would have now."""
        return self._given.get(self._next(rank, stage), self.last + 1)

    def _next(self, rank: int, stage: Stage) -> _Key:
        name = (stage.kind, stage.words, stage.note if stage.kind == "directory" else "")
        return (*name, self._times.get(rank, {}).get(name, 0) + 1)

    def _forget(self, key: _Key) -> None:
        del self._given[key], self._waiting[key]


def numbered(stages: Mapping[int, Iterable[Stage]], numbers: SharedNumbers) -> dict[int, list[Stage]]:
    """Rank → its stages, those that were passed with the number that they have on every rank, in the order of time."""
    found = {rank: list(theirs) for rank, theirs in stages.items()}
    passed = sorted(
        (stage.left_at, rank, at)
        for rank, theirs in found.items()
        for at, stage in enumerate(theirs)
        if stage.number and stage.left_at is not None
    )
    for _, rank, at in passed:
        stage = found[rank][at]
        found[rank][at] = replace(stage, number=numbers.number(rank, stage))
    return found
