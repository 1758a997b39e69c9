"""Files that stay open in the user's process, under descriptors that the program may close and use for its own.

`os.closerange(3, 1024)` is how programs turn into daemons. Whoever writes to a descriptor after that writes into a file
of the program. So a descriptor is known by the file behind it, not by its number, and a lost one is replaced.
"""

from __future__ import annotations

import fcntl
import functools
import os
import posix
import resource
from collections.abc import Callable
from typing import Any

_HIGH = 1000
"""Out of the way of loops that close the first few, and of programs that rely on the next number being low."""


class KeptFile:
    """`arm(fd)` is called with the descriptor, and again with another one whenever the program has closed it."""

    def __init__(self, path: str, arm: Callable[[int], object]) -> None:
        self._path = path
        self._arm = arm
        self.fd = -1
        self._identity = (0, 0)
        self._open()

    def _open(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.fd = _moved_up(fd)
        self._identity = _identity(self.fd)
        self._arm(self.fd)

    def is_ours(self) -> bool:
        try:
            return _identity(self.fd) == self._identity
        except OSError:
            return False

    def mind(self) -> None:
        """Opened anew where the descriptor is the program's by now, or nobody's."""
        if not self.is_ours():
            self._open()

    def give_up(self) -> None:
        """Closed, if it is still ours to close."""
        if self.is_ours():
            os.close(self.fd)
        self.fd = -1


kept: list[KeptFile] = []
"""Of this process."""


def mind_all() -> None:
    for file in kept:
        file.mind()


def watch_closing(report: Callable[[str], None]) -> None:
    """`os.close`, `os.closerange` and `os.dup2` do what they did; what they took from us is opened again."""
    close, closerange, dup2 = os.close, os.closerange, os.dup2
    files = kept  # while the interpreter is torn down, the module's own names are gone

    def mind() -> None:
        try:
            mind_all()
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            files.clear()
            report(f"the files of stacks were closed and could not be opened again: {error}")

    def mind_one(fd: Any) -> None:
        for file in files:
            if file.fd == fd:
                mind()
                break

    @functools.wraps(close)
    def os_close(fd: Any) -> None:
        close(fd)
        mind_one(fd)

    @functools.wraps(dup2)
    def os_dup2(fd: Any, fd2: Any, inheritable: Any = True) -> int:
        copy = dup2(fd, fd2, inheritable)
        mind_one(copy)
        return copy

    @functools.wraps(closerange)
    def os_closerange(fd_low: Any, fd_high: Any, /) -> None:
        closerange(fd_low, fd_high)
        mind()

    for home in (os, posix):  # where they are looked up when they are pickled
        vars(home).update(close=os_close, closerange=os_closerange, dup2=os_dup2)


def _moved_up(fd: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = min(_HIGH, soft - 24) if soft != resource.RLIM_INFINITY else _HIGH
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(least, 3))
    except (OSError, ValueError):
        return fd  # the program has nearly all of them in use
    _close(fd)
    return high


_close = os.close


def _identity(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino
