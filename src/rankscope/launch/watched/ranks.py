"""Finds the ranks of a command that somebody else's launcher starts, by the pages that the probe writes in every Python
process, by what the launcher told them in the environment, and by their joining a process group."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from rankscope.evidence import procfs
from rankscope.evidence.jobs import read_job_environment, told_rank
from rankscope.probe import page as layout

_SIDE_FILES = (".page", ".stacks", ".fatal", ".sock")
_MOST_KEPT = 64
UNSURE_S = 30.0
"""After which a process that only a scheduler calls a rank is taken for one, though nobody has joined a group."""


@dataclass(slots=True)
class Process:
    """A Python process of the command."""

    pid: int
    page: Path
    started_at: float
    parent: int
    told: tuple[int, int, int] | None
    """Rank, size of the world, local rank, by its environment; the size is 0 where that does not tell."""
    by_torch: bool
    """It is RANK that tells it: launchers of torch's programs set that for ranks alone."""
    index: int = -1
    """Among the processes that torch's spawn started."""
    rank: int = -1
    world: int = 0
    """Both as it joined a process group; 0: not yet."""
    alive: bool = True

    @property
    def joined(self) -> bool:
        return self.world > 0 and self.rank >= 0


@dataclass(frozen=True, slots=True)
class Rank:
    rank: int
    local_rank: int
    world: int
    pid: int
    started_at: float
    page: Path
    joined: bool
    """A process group; others are ranks by what they were told."""


class Finder:
    """Looks at the pages' folder, again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, Process] = {}

    def look(self) -> list[Process]:
        """All Python processes so far, those that have ended included as long as they may have been ranks."""
        for entry in os.scandir(self._folder):
            if not entry.name.endswith(".page"):
                continue
            path = Path(entry.path)
            pid = int(path.stem.rpartition("-")[2])
            known = self._known.get(pid)
            if known is None:
                known = self._known[pid] = _first_look(pid, path)
            if not known.joined:
                _read_identity(known)
            known.alive = known.alive and os.path.exists(f"/proc/{pid}")
        self._sweep()
        return list(self._known.values())

    def ranks(self, now: float, without: Container[int] = ()) -> list[Rank]:
        """As far as they are known by now; `without` processes that are no longer of interest."""
        return ranks_among([process for process in self.look() if process.pid not in without], now)

    def _sweep(self) -> None:
        """A command may start thousands of processes that are no ranks: of those that have ended the newest stay."""
        others = [each for each in self._known.values() if not each.joined and each.told is None and each.index < 0]
        gone = [process for process in others if not process.alive]
        for process in gone[:-_MOST_KEPT]:
            for suffix in _SIDE_FILES:
                process.page.with_suffix(suffix).unlink(missing_ok=True)
            del self._known[process.pid]


def _first_look(pid: int, path: Path) -> Process:
    environment = read_job_environment(pid)
    told = told_rank(environment)
    local, world = environment.get("LOCAL_RANK", ""), environment.get("WORLD_SIZE", "")
    if told is None and local.isdigit() and world.isdigit():
        node = environment.get("NODE_RANK", "0")
        told = (int(local), int(world), int(local)) if node == "0" else None
    try:
        parent, started = procfs.parent(pid), procfs.start_time(pid)
    except (OSError, ProcessLookupError):
        parent, started = 0, path.stat().st_mtime
    return Process(pid, path, started, parent, told, "RANK" in environment)


def _read_identity(process: Process) -> None:
    try:
        with process.page.open("rb") as file:
            header = file.read(layout.IDENTITY.size)
        _, _, rank, world, _, _ = layout.IDENTITY.unpack(header)
    except (OSError, struct.error):
        return  # being written, or removed
    if world > 0:
        process.rank, process.world = rank, world
    elif rank >= 0 and process.told is None:
        process.index = rank


def ranks_among(processes: Iterable[Process], now: float) -> list[Rank]:
    """Who of them is a rank, of the job that joined last; one process a rank, in order.

    Sure are those that joined a process group, and those whose launcher set RANK. Whom a scheduler numbers may be a
    launcher, and whom torch's spawn numbers any worker: they are ranks once another of their kind has joined.
    """
    known = {process.pid: process for process in processes}
    found: dict[int, Process] = {}
    # The living come after the dead, who joined after who was only told, and the newest last.
    for process in sorted(known.values(), key=lambda each: (each.alive, each.joined, each.started_at)):
        number = _number(process, known, now)
        if number is not None:
            found[number] = process
    world = max((process.world or (process.told or (0, 0, 0))[1] for process in found.values()), default=0)
    found |= _by_elimination(found, known, world)
    return [
        Rank(
            rank=number,
            local_rank=process.told[2] if process.told is not None else number,
            world=max(world, len(found)),
            pid=process.pid,
            started_at=process.started_at,
            page=process.page,
            joined=process.joined,
        )
        for number, process in sorted(found.items())
    ]


def _number(process: Process, known: dict[int, Process], now: float) -> int | None:
    if process.joined:
        return process.rank
    above = [known[pid] for pid in _ancestors(process, known) if pid in known]
    if any(ancestor.joined for ancestor in above):
        return None  # a loader's worker, or whatever else a rank starts
    if process.told is not None:
        if any(_gave_its_number(ancestor, process) for ancestor in above):
            return None  # it has its number from its parent, which is the rank itself
        if process.by_torch or _has_joined(process, known) or now - process.started_at > UNSURE_S:
            return None if _launches(process, known) else process.told[0]
        return None
    if process.index >= 0 and any(other.joined and other.parent == process.parent for other in known.values()):
        return process.index
    return None


def _gave_its_number(ancestor: Process, process: Process) -> bool:
    """Not where a launcher that a scheduler had numbered gave a number of torch's own, which may be the same one."""
    if ancestor.told is None or process.told is None or (process.by_torch and not ancestor.by_torch):
        return False
    return ancestor.told[0] == process.told[0]


def _has_joined(process: Process, known: dict[int, Process]) -> bool:
    """Another process that was numbered in the same way: it was no launcher's number then. Or its parent's child."""
    return any(other.joined and (other.told is not None or other.pid == process.parent) for other in known.values())


def _launches(process: Process, known: dict[int, Process]) -> bool:
    """It was numbered by a scheduler, and has children that were told numbers of their own."""
    if process.by_torch:
        return False
    return any(process.pid in _ancestors(other, known) for other in known.values() if other.by_torch or other.joined)


def _by_elimination(found: dict[int, Process], known: dict[int, Process], world: int) -> dict[int, Process]:
    """The one child of multiprocessing that has not joined yet, where one rank is missing among its siblings."""
    missing = [number for number in range(world) if number not in found]
    if len(missing) != 1:
        return {}
    parents = {process.parent for process in found.values() if process.joined}
    taken = {process.pid for process in found.values()}
    left = [
        process
        for process in known.values()
        if process.pid not in taken and process.parent in parents and process.told is None and _is_worker(process.pid)
    ]
    return {missing[0]: left[0]} if len(left) == 1 and len(parents) == 1 else {}


def _is_worker(pid: int) -> bool:
    try:
        words = procfs.command_line(pid)
    except (OSError, ProcessLookupError):
        return False
    return "resource_tracker" not in words and ("multiprocessing" in words or "--multiprocessing-fork" in words)


def _ancestors(process: Process, known: dict[int, Process]) -> list[int]:
    found: list[int] = []
    current = process.parent
    while current > 1 and len(found) < 64:
        found.append(current)
        try:
            current = known[current].parent if current in known else procfs.parent(current)
        except (OSError, ProcessLookupError):
            break
    return found


def is_complete(ranks: list[Rank]) -> bool:
    """All ranks of the world are here; of a job on several machines nobody here can tell."""
    return bool(ranks) and len(ranks) >= ranks[0].world


def newest_start(ranks: list[Rank]) -> float:
    return max((rank.started_at for rank in ranks), default=time.time())
