"""What filled a GPU whose memory ran out."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact


@dataclass(frozen=True, slots=True)
class GpuFilled(Fact):
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


@dataclass(frozen=True, slots=True)
class GpuShared(Fact):
    """Other processes held a good part of the same GPU."""

    bytes: int
    """All of them together."""
    pids: tuple[int, ...]
    """The largest first."""
    ranks: tuple[int, ...] = ()
    """Those of them that are ranks of this job."""


@dataclass(frozen=True, slots=True)
class GpuGrew(Fact):
    """What the rank had allocated grew from step to step."""

    rank: int
    bytes_per_step: int
    steps: int
    first: int
    """Bytes after the first step."""


@dataclass(frozen=True, slots=True)
class LiveTensors(Fact):
    """The largest tensors that the program itself still held, equal ones counted together."""

    rank: int
    kinds: tuple[tuple[int, str, int], ...]
    """Number, shape and type, bytes of all of them."""
    in_all: int
    """Bytes of all tensors that Python could reach."""
    allocated: int


@dataclass(frozen=True, slots=True)
class HeldAt(Fact):
    """Lines of the program that allocated what was held, as torch's own history of allocations says."""

    rank: int
    lines: tuple[tuple[str, int], ...]
    """`train.py:45 main` and bytes, the largest first."""
