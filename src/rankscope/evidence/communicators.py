"""What NCCL's own RAS network tells of a job: its communicators, and how many operations each rank has launched."""

from __future__ import annotations

import msgspec


class CommMember(msgspec.Struct, frozen=True, gc=False):
    """A rank of a communicator."""

    rank: int
    """Within the communicator."""
    pid: int | None = None
    host: str = ""
    gpu: int | None = None
    """As NVML counts."""
    state: str = "running"
    """`running`, `init`, `finalize`, `abort`; `unresponsive` or `dead`: its process does not answer; `left`: the
    process answers, and is no longer in the communicator."""
    launched: dict[str, int] = msgspec.field(default_factory=dict)
    """Operation, as NCCL names it → how many of them the rank has launched so far. Send and receive are not counted."""
    error: str = ""


class Communicator(msgspec.Struct, frozen=True, gc=False):
    id: str
    size: int
    members: tuple[CommMember, ...] = ()
    """Those of which something is known. NCCL's text names only ranks that differ from most others."""


class LostProcess(msgspec.Struct, frozen=True, gc=False):
    pid: int
    host: str
    dead: bool
    """Given up by NCCL; otherwise it has only not answered this time."""


class RasLook(msgspec.Struct, frozen=True, gc=False):
    """One answer."""

    at: float
    version: str
    counted: bool
    """Every member's counts are told (JSON, NCCL 2.28.7 and later); in text only those of ranks that differ."""
    communicators: tuple[Communicator, ...] = ()
    lost: tuple[LostProcess, ...] = ()
    processes: int | None = None
    """Of the whole job, on all machines."""

    def pids(self) -> frozenset[int]:
        """Every process that the answer names."""
        named = {member.pid for comm in self.communicators for member in comm.members if member.pid is not None}
        return frozenset(named | {gone.pid for gone in self.lost})
