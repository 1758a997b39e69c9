"""What filled a GPU, or a machine, whose memory ran out."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact


class GpuFilled(Fact, frozen=True):
    """What torch's allocator held in the rank, in bytes; 0 where it is not known."""

    rank: int
    device: int
    asked: int
    total: int
    free: int
    allocated: int
    idle: int
    """Kept by the allocator and not in use."""
    allowed: int = 0
    """A limit that the program has set for itself."""


class GpuShared(Fact, frozen=True):
    """Other processes held a good part of the same GPU."""

    bytes: int
    """All of them together."""
    pids: tuple[int, ...]
    """The largest first."""
    ranks: tuple[int, ...] = ()
    """Those of them that are ranks of this job."""


class GpuGrew(Fact, frozen=True):
    """What the rank had allocated grew from step to step."""

    rank: int
    bytes_per_step: int
    steps: int
    first: int
    """Bytes after the first step."""


class LiveTensors(Fact, frozen=True):
    """The largest tensors that the program itself still held, equal ones counted together."""

    rank: int
    kinds: tuple[tuple[int, str, int], ...]
    """Number, shape and type, bytes of all of them."""
    in_all: int
    """Bytes of all tensors that Python could reach."""
    allocated: int


class HeldAt(Fact, frozen=True):
    """Lines of the program that allocated what was held, as torch's own history of allocations says."""

    rank: int
    lines: tuple[tuple[str, int], ...]
    """`train.py:45 main` and bytes, the largest first."""


class HostGrew(Fact, frozen=True):
    """How the memory of a rank's own process grew, on a machine whose memory ran out."""

    rank: int
    first: int
    """Bytes at the beginning of the seconds."""
    last: int
    """At the last glance before the end; what it took after that is not in it."""
    seconds: float
    steps: int = 0
    """Optimizer steps in that time, where it begins with the first of them; 0: it begins with the rank's start."""
