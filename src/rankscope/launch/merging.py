"""Equal lines of several ranks become one. No I/O and no clock here."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

HOLD_S = 0.15
"""How long a line waits for its equals."""
_MOST_HELD = 4096
"""Ranks that print that much in a moment are not made to wait for one another."""


@dataclass(eq=False, slots=True)
class HeldLine:
    target: str
    """`stdout` or `stderr`."""
    text: bytes
    owners: list[int]
    """Local ranks, in the order in which they said it."""
    number: int
    due: float


class Merger:
    """Lines leave in the order in which they came, so the order within a rank is kept: a line joins an earlier one only
    where its rank has said nothing after that."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._queue: deque[HeldLine] = deque()
        self._waiting: dict[Hashable, HeldLine] = {}
        """The newest line of that target and text."""
        self._last: dict[int, int] = {}
        """Local rank → the number of the newest line that is its own."""
        self._count = 0

    def add(self, owner: int, target: str, text: bytes, now: float) -> None:
        key = (target, text)
        held = self._waiting.get(key)
        if held is not None and self._last.get(owner, -1) < held.number:
            held.owners.append(owner)
        else:
            held = HeldLine(target, text, [owner], self._count, now + self._hold_s)
            self._count += 1
            self._queue.append(held)
            self._waiting[key] = held
        self._last[owner] = held.number

    def ready(self, now: float, everybody: int) -> list[HeldLine]:
        """The lines that wait no longer: their time is up, or all of `everybody` ranks have said the same."""
        found = []
        while self._queue:
            first = self._queue[0]
            if first.due > now and len(first.owners) < everybody and len(self._queue) <= _MOST_HELD:
                break
            found.append(self._leave())
        return found

    def rest(self) -> list[HeldLine]:
        """All that is left."""
        return [self._leave() for _ in range(len(self._queue))]

    @property
    def next_due(self) -> float | None:
        return self._queue[0].due if self._queue else None

    def _leave(self) -> HeldLine:
        first = self._queue.popleft()
        if self._waiting.get((first.target, first.text)) is first:
            del self._waiting[first.target, first.text]
        return first
