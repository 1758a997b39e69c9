"""What is known of each step: kept for the picture, written as JSON lines, told to trackers. On rank 0 only."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TextIO

_RECENT = 20


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: int
    loss: float | None
    """None where it is not finite: JSON has no word for it, and `finite` tells."""
    learning_rate: float
    grad_norm: float | None
    finite: bool
    step_s: float
    tokens: int
    """All ranks together, since the first step of the run."""
    tokens_per_s: float
    tflops_per_device: float
    mfu: float | None
    """Share of the device's peak; None where the peak is unknown."""
    gpu_memory_bytes: int | None
    time: float


class Tracker(Protocol):
    def log(self, record: StepRecord) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Speeds:
    """What turns a step's time into rates."""

    tokens_per_step: int
    flops_per_token: float
    devices: int
    peak_flops: float | None

    def rates(self, seconds: float) -> tuple[float, float, float | None]:
        """Tokens/s of the job, TFLOP/s of one device, MFU."""
        tokens = self.tokens_per_step / max(seconds, 1e-9)
        flops = tokens * self.flops_per_token / self.devices
        return tokens, flops / 1e12, None if self.peak_flops is None else flops / self.peak_flops


class Pace:
    """From the durations of the latest steps, the time that is left.

    The first step compiles and warms up; it counts only while there is no other.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._steps = 0

    def took(self, seconds: float) -> None:
        """A step has ended."""
        if self._steps == 1:
            self._recent.clear()
        self._recent.append(seconds)
        self._steps += 1

    def left(self, steps: int) -> float | None:
        return statistics.median(self._recent) * steps if self._recent else None


class MetricsFile:
    """One line of JSON a step. The system's cache takes the writes; a crash of the machine may lose the last ones."""

    def __init__(self, path: Path, *, append: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a" if append else "w", encoding="utf-8", buffering=1)

    def log(self, record: StepRecord) -> None:
        self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        self._file.close()


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
