"""The processes that one run of the zoo started: found by a mark in their environment, and ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "RANKSCOPE_ZOO_MARK"


def first_worker(parent: int) -> int:
    """A forked child that runs the same program as its parent: a data-loading worker."""
    program = Path(f"/proc/{parent}/cmdline").read_bytes()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if Path(f"/proc/{child}/cmdline").read_bytes() == program:
            return int(child)
    raise LookupError(f"process {parent} has no data-loading worker")


def marked(mark: str) -> dict[int, str]:
    """Processes that carry the run's mark in their environment → their command lines."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except (OSError, UnicodeDecodeError):
            continue  # ended meanwhile, or somebody else's
    return found


def leftovers(mark: str, grace_s: float) -> dict[int, str]:
    """What is still there after `grace_s` seconds; returns at once when nothing is."""
    end = time.monotonic() + grace_s
    while True:
        found = marked(mark)
        if not found or time.monotonic() >= end:
            return found
        time.sleep(0.1)


def kill_all(processes: dict[int, str]) -> None:
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # ended by itself


def rank_process(mark: str, rank: int) -> int:
    """The process that a launcher started as that rank: it carries RANK in its environment, its parent does not.

    Raises LookupError where there is none.
    """
    wanted = f"RANK={rank}".encode()
    ranks = {pid for pid in marked(mark) if any(name.startswith(b"RANK=") for name in _environment(pid))}
    for pid in sorted(ranks):
        if wanted in _environment(pid) and _parent(pid) not in ranks:
            return pid
    raise LookupError(f"no process of rank {rank}")


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # ended meanwhile


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # ended meanwhile
