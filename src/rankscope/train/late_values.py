"""Numbers of a step, read by the host one step later, when the device has long gone on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Waiting:
    step: int
    values: Tensor
    event: torch.cuda.Event | None


class LateValues:
    """`put` never waits. `take` waits for the oldest, which is done by then unless the host is ahead by a step."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, step: int, values: Tensor) -> None:
        if values.device.type != "cuda":
            self._waiting.append(_Waiting(step, values.clone(), None))
            return
        there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        there.copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._waiting.append(_Waiting(step, there, event))

    def take(self) -> tuple[int, list[float]]:
        """Step and values of the oldest."""
        oldest = self._waiting.popleft()
        if oldest.event is not None:
            oldest.event.synchronize()
        return oldest.step, oldest.values.tolist()
