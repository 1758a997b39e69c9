"""Numbers of a step, read by the host one step later, when the device has long gone on."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Late:
    step: int
    values: list[float]
    seconds: float
    """From the end of the step before, on the device, to the end of this one."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    step: int
    values: Tensor
    ended: torch.cuda.Event | float
    """On the device's own clock, or the host's where the host computes."""


class LateValues:
    """`put` never waits. `take` waits for the oldest, which is done by then unless the host is ahead by a step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._waiting: deque[_Waiting] = deque()
        self._before = self._now()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def least_waiting(self) -> int:
        """How many are left to wait: the newest where a device computes it, none where it is there already."""
        return 1 if self._cuda else 0

    def put(self, step: int, values: Tensor) -> None:
        if self._cuda:
            there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            there.copy_(values, non_blocking=True)
        else:
            there = values.clone()
        self._waiting.append(_Waiting(step, there, self._now()))

    def take(self) -> Late:
        """The oldest."""
        oldest = self._waiting.popleft()
        before, self._before = self._before, oldest.ended
        if isinstance(oldest.ended, float):
            assert isinstance(before, float)
            return Late(oldest.step, oldest.values.tolist(), oldest.ended - before)
        oldest.ended.synchronize()
        assert isinstance(before, torch.cuda.Event)
        return Late(oldest.step, oldest.values.tolist(), before.elapsed_time(oldest.ended) / 1000)

    def _now(self) -> torch.cuda.Event | float:
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
