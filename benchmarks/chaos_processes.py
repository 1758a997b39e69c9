"""Who is who among the processes of a marked job, and what is left of it in memory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from pathlib import Path

MARK = "RANKSCOPE_CHAOS_MARK"
FRESH_S = 0.05
_MARKED = re.compile(rb"(?:^|\0)RANKSCOPE_CHAOS_MARK=([\w-]+)")
_PAGES = re.compile(rb"(/dev/shm/rankscope-\d+-pages-[0-9a-f]{12})")


class _Scan:
    """All processes, looked at once for all rounds that are under way: each asks ten times a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._known: dict[tuple[int, bytes], str] = {}
        """Process and the moment of its start → its mark. It never loses it."""
        self._pages: dict[str, set[str]] = {}
        self._living: dict[str, list[int]] = {}

    def marked(self, mark: str) -> list[int]:
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                self._look()
            return list(self._living.get(mark, ()))

    def pages(self, mark: str | None = None) -> set[str]:
        """The folders in shared memory of the ranks with this mark, or of all that were ever seen."""
        with self._lock:
            every = self._pages.values() if mark is None else [self._pages.get(mark, set())]
            return set().union(*every)

    def _look(self) -> None:
        known: dict[tuple[int, bytes], str] = {}
        living: dict[str, list[int]] = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            fields = read(pid, "stat").rpartition(b")")[2].split()
            if len(fields) < 20 or fields[0] in (b"Z", b"X"):
                continue
            process = pid, fields[19]
            mark = self._known.get(process) or self._mark_of(pid)
            if mark:
                known[process] = mark
                living.setdefault(mark, []).append(pid)
        for mark, pids in living.items():
            # Not once for each process: before it calls exec it has the environment of its parent.
            folders = {folder.decode() for pid in pids for folder in _PAGES.findall(read(pid, "environ"))}
            self._pages.setdefault(mark, set()).update(folders)
        self._known, self._living, self._at = known, living, time.monotonic()

    def _mark_of(self, pid: int) -> str | None:
        found = _MARKED.search(read(pid, "environ"))
        return None if found is None else found[1].decode()


_scan = _Scan()


def marked(mark: str) -> list[int]:
    """The living processes that were started with this mark in their environment, or by one that was."""
    return _scan.marked(mark)


def about(folder: Path) -> list[int]:
    """The living processes that work in this folder or have it in their command, whatever their environment says."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            inside = Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
        except OSError:
            inside = False
        if (inside or os.fsencode(folder) in read(pid, "cmdline")) and state_of(pid) not in ("Z", "X", ""):
            found.append(pid)
    return found


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
    """Hidden ones are those that were not finished."""
    names = (f"rankscope-{os.getuid()}-pages-*", f".rankscope-{os.getuid()}-*")
    return {str(path) for name in names for path in Path("/dev/shm").glob(name)}


def left_in_memory(before: set[str], marks: list[str]) -> list[str]:
    """Folders of the round's ranks that are still there, or new ones of nobody's ranks that nobody uses. Those are
    asked for twice: another job that starts now has its folder before it holds it.

    To be asked as soon as the last process has ended: whoever starts a job sweeps away what others left."""
    own = set().union(*map(_scan.pages, marks))
    left = {path for path in own if os.path.isdir(path)}
    suspects = {path for path in shared_folders() - before - _scan.pages() if _unheld(path)} if not own else set()
    if suspects:
        time.sleep(2.0)
    return sorted(left | {path for path in suspects if _unheld(path)})


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
