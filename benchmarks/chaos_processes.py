"""Who is who among the processes of a marked job, and what is left of it in memory."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

MARK = "RANKSCOPE_CHAOS_MARK"


def marked(mark: str) -> list[int]:
    """The living processes that were started with this mark in their environment, or by one that was."""
    wanted = f"{MARK}={mark}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if wanted in read(pid, "environ").split(b"\0") and state_of(pid) not in ("Z", "X", "")]


def find(victim: str, guard: int, mark: str, run: Path) -> int | None:
    """The process of that part of a job; None where there is none yet, or no more."""
    if victim == "guard":
        return guard
    tree = {pid: parent for pid in marked(mark) if (parent := parent_of(pid)) is not None}
    wardens = sorted(pid for pid, parent in tree.items() if parent == guard)
    launchers = sorted(pid for pid, parent in tree.items() if parent in wardens)
    if victim in ("warden", "launcher"):
        return next(iter(wardens if victim == "warden" else launchers), None)
    ranks = ranks_in(run)
    if victim.startswith("rank"):
        return ranks.get(int(victim[-1]))
    workers = [pid for pid, parent in tree.items() if parent in ranks.values()]
    return min(workers, default=None)


def ranks_in(run: Path) -> dict[int, int]:
    """Rank → pid, as the launcher has written it down."""
    for path in sorted(run.rglob("ranks.json")) if run.exists() else ():
        try:
            return {int(rank): pid for rank, pid in json.loads(path.read_bytes()).items()}
        except (OSError, ValueError):
            continue
    return {}


def ranks_alive(mark: str) -> bool:
    lines = [read(pid, "cmdline") for pid in marked(mark)]
    return any(b"train.py" in line and b"-m\0rankscope" not in line for line in lines)


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int | None:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def state_of(pid: int) -> str:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it was faster


def shared_folders() -> set[str]:
    return {str(path) for path in Path("/dev/shm").glob(f"rankscope-{os.getuid()}-pages-*")}


def left_in_memory(before: set[str]) -> list[str]:
    """New folders that nobody uses. Asked twice: another job that starts now has its folder before it holds it."""
    suspects = {path for path in shared_folders() - before if _unheld(path)}
    if suspects:
        time.sleep(2.0)
    return sorted(path for path in suspects if _unheld(path))


def _unheld(path: str) -> bool:
    """Whoever uses such a folder holds a lock on it: another job on this machine, perhaps."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False  # removed meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
