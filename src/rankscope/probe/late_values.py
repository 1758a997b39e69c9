"""Numbers that a GPU computes, read on the host a little later without ever waiting for the GPU."""

from __future__ import annotations

from collections import deque
from typing import Any

_SLOTS = 32


class LateValues:
    """`send` queues a copy of a number into pinned memory; `arrived` gives those that the GPU has delivered."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._values = torch.zeros(_SLOTS, dtype=torch.float32, device="cpu", pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)]
        self._free = list(range(_SLOTS))
        self._sent: deque[tuple[int, object]] = deque()

    def send(self, number: Any, about: object) -> bool:
        """`number` is a GPU tensor of one element. False where too many are on their way already."""
        if not self._free:
            return False
        slot = self._free.pop()
        with self._torch.no_grad():
            self._values[slot : slot + 1].copy_(number.detach().reshape(1), non_blocking=True)
        self._events[slot].record()
        self._sent.append((slot, about))
        return True

    def arrived(self) -> list[tuple[float, object]]:
        """In the order in which they were sent."""
        found = []
        while self._sent and self._events[self._sent[0][0]].query():
            slot, about = self._sent.popleft()
            found.append((float(self._values[slot]), about))
            self._free.append(slot)
        return found
