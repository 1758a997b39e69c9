"""The folder of the ranks' pages and sockets: who holds it, and who sweeps what nobody holds any more.

Whoever uses a folder holds a lock on it (flock, on the folder itself). The kernel lets go of it with the last process
that has it, however that ended, and every container that shares the memory sees it: process ids would tell neither.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass

from rankscope.errors import RankscopeError

MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class PageFolder:
    path: str
    lock: int
    """A descriptor that keeps the folder; children inherit it by fork, not by exec."""


def make_page_folder() -> PageFolder:
    """A new folder of our own, held by this process: in memory where there is any, so that a slow disk never slows
    a rank, and with a short path, because sockets want one."""
    for base in (MEMORY, os.environ.get("TMPDIR", "/tmp"), "/tmp"):
        try:
            return _make(base)
        except OSError:
            continue  # not there, not writable or full: the next one
    raise RankscopeError("neither /dev/shm nor /tmp can be written: the ranks' pages have no place")


def _make(base: str) -> PageFolder:
    name = os.urandom(6).hex()
    new, path = f"{base}/.rankscope-{os.getuid()}-{name}", f"{base}/rankscope-{os.getuid()}-pages-{name}"
    os.mkdir(new, 0o700)
    lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    _hold(lock)
    os.rename(new, path)  # only now: a folder under this name that nobody holds is nobody's
    return PageFolder(path, lock)


def sweep(base: str = MEMORY) -> list[str]:
    """Removes this user's folders that nobody holds: of jobs whose processes were all killed at once.

    Only in memory: elsewhere another machine may hold a folder, and its lock may not be seen here.
    """
    ours = re.compile(rf"rankscope-{os.getuid()}-pages-[0-9a-f]{{12}}")
    try:
        names = [name for name in os.listdir(base) if ours.fullmatch(name)]
    except OSError:
        return []  # no such memory here: nothing can have been left in it
    return [path for path in (f"{base}/{name}" for name in names) if _remove_unheld(path)]


def _remove_unheld(path: str) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False  # removed meanwhile, or not ours to look into
    try:
        if os.fstat(lock).st_uid != os.getuid() or not _hold(lock):
            return False
        remove_page_folder(path)
        return True
    finally:
        os.close(lock)


def _hold(lock: int) -> bool:
    """Whether the folder is ours now; False where somebody has it, or where folders cannot be locked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_page_folder(path: str) -> None:
    """With all that lies in it, which is flat."""
    try:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        return  # removed already
