"""What NCCL and the GPUs themselves tell of a job: operations launched, waits for a GPU, and work that it does."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact


class LaunchCount(Fact, frozen=True):
    """Ranks that have launched equally many."""

    ranks: tuple[int, ...]
    count: int


class Apart(Fact, frozen=True):
    """The ranks of a communicator have not launched equally many of an operation; fewest first. `over_s`: no count
    grew in that time."""

    operation: str
    size: int
    sides: tuple[LaunchCount, ...]
    over_s: float


class Behind(Fact, frozen=True):
    """Ranks that have launched fewer operations than all others."""

    ranks: tuple[int, ...]
    apart: Apart


class Ahead(Fact, frozen=True):
    """Ranks that have launched operations which no other rank has."""

    ranks: tuple[int, ...]
    apart: Apart


class OnOtherWay(Fact, frozen=True):
    """Ranks that have launched more of one operation and fewer of another than all others."""

    ranks: tuple[int, ...]
    apart: tuple[Apart, ...]


class TwoSides(Fact, frozen=True):
    """Ranks have not launched the same, and no side is clearly the odd one."""

    apart: Apart


class LaunchedAlike(Fact, frozen=True):
    """NCCL sees no difference between the ranks. Send and receive are not counted by it."""

    communicators: int


class DoNotAnswer(Fact, frozen=True):
    """Processes of the job that NCCL's own network does not reach: (pid, host)."""

    processes: tuple[tuple[int, str], ...]
    dead: bool


class SpinsForGpu(Fact, frozen=True):
    """Ranks that use the processor in a call which waits for the GPU."""

    ranks: tuple[int, ...]
    call: str


class GpuAtWork(Fact, frozen=True):
    """What the counters of a GPU say, in shares from 0 to 1. `works`: None where they do not tell."""

    ranks: tuple[int, ...]
    index: int
    works: bool | None
    sm: float | None
    arithmetic: float | None
    memory: float | None
    power_w: float | None
    utilization_percent: int | None


class StandsOnGpu(Fact, frozen=True):
    """Every rank waits for its GPU, none got anywhere, and nothing tells which one began it."""

    ranks: tuple[int, ...]
    over_s: float


class GpusWork(Fact, frozen=True):
    """Ranks stand on one line, and their GPUs work."""

    ranks: tuple[int, ...]
