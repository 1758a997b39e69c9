"""What NCCL and the GPUs themselves tell of a job: operations launched, waits for a GPU, and work that it does."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact


@dataclass(frozen=True, slots=True)
class LaunchCount(Fact):
    """Ranks that have launched equally many."""

    ranks: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Apart(Fact):
    """The ranks of a communicator have not launched equally many of an operation; fewest first. `over_s`: no count
    grew in that time."""

    operation: str
    size: int
    sides: tuple[LaunchCount, ...]
    over_s: float


@dataclass(frozen=True, slots=True)
class Behind(Fact):
    """Ranks that have launched fewer operations than all others."""

    ranks: tuple[int, ...]
    apart: Apart


@dataclass(frozen=True, slots=True)
class Ahead(Fact):
    """Ranks that have launched operations which no other rank has."""

    ranks: tuple[int, ...]
    apart: Apart


@dataclass(frozen=True, slots=True)
class OnOtherWay(Fact):
    """Ranks that have launched more of one operation and fewer of another than all others."""

    ranks: tuple[int, ...]
    apart: tuple[Apart, ...]


@dataclass(frozen=True, slots=True)
class TwoSides(Fact):
    """Ranks have not launched the same, and no side is clearly the odd one."""

    apart: Apart


@dataclass(frozen=True, slots=True)
class LaunchedAlike(Fact):
    """NCCL sees no difference between the ranks. Send and receive are not counted by it."""

    communicators: int


@dataclass(frozen=True, slots=True)
class DoNotAnswer(Fact):
    """Processes of the job that NCCL's own network does not reach: (pid, host)."""

    processes: tuple[tuple[int, str], ...]
    dead: bool


@dataclass(frozen=True, slots=True)
class SpinsForGpu(Fact):
    """Ranks that use the processor in a call which waits for the GPU."""

    ranks: tuple[int, ...]
    call: str


@dataclass(frozen=True, slots=True)
class GpuAtWork(Fact):
    """What the counters of a GPU say, in shares from 0 to 1. `works`: None where they do not tell."""

    ranks: tuple[int, ...]
    index: int
    works: bool | None
    sm: float | None
    arithmetic: float | None
    memory: float | None
    power_w: float | None
    utilization_percent: int | None


@dataclass(frozen=True, slots=True)
class StandsOnGpu(Fact):
    """Every rank waits for its GPU, none got anywhere, and nothing tells which one began it."""

    ranks: tuple[int, ...]
    over_s: float


@dataclass(frozen=True, slots=True)
class GpusWork(Fact):
    """Ranks stand on one line, and their GPUs work."""

    ranks: tuple[int, ...]
