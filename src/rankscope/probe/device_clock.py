"""Times of a GPU's own clock: the host only hands work over, and does not see how long it takes.

Three marks in the GPU's queue for each pass: where forward begins, where the rank's own gradients are done, and where
the reduction with the other ranks is. They are read when the GPU has passed the last; nothing waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

_SETS = 16


class DeviceClock:
    """Not for several threads at once: the main thread stands in backward() while the engine's makes its mark."""

    def __init__(self, torch: Any) -> None:
        self._capturing = torch.cuda.is_current_stream_capturing
        self._free = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(3)) for _ in range(_SETS)]
        self._sent: deque[tuple[Any, ...]] = deque()
        self._open: tuple[Any, ...] | None = None
        self._own_done = False

    def forward_begins(self) -> None:
        if self._capturing():
            return
        if self._open is None and self._free:
            self._open = self._free.pop()
        if self._open is not None:
            self._own_done = False
            self._open[0].record()

    def own_gradients_done(self) -> None:
        if self._open is not None and not self._capturing():
            self._own_done = True
            self._open[1].record()

    def backward_done(self) -> None:
        if self._open is not None and self._own_done and not self._capturing():
            self._open[2].record()
            self._sent.append(self._open)
            self._open, self._own_done = None, False

    def passed(self) -> tuple[float, float]:
        """Seconds of own work and of waiting for the reduction that the GPU has finished since it was asked last."""
        own = waiting = 0.0
        while self._sent and self._sent[0][2].query():
            begin, done, reduced = marks = self._sent.popleft()
            own += begin.elapsed_time(done) / 1e3
            waiting += done.elapsed_time(reduced) / 1e3
            self._free.append(marks)
        return own, waiting
