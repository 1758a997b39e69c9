"""One rank of a host at a time imports what takes much memory to import."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable

from rankscope.probe.stages import StageBook

VARIABLE = "RANKSCOPE_IMPORT_LOCK"
"""The lock file; set by the launcher where imports are to be serialised."""
HEAVY = (
    "torch",
    "transformers",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "datasets",
    "accelerate",
    "tensorflow",
    "jax",
)
_POLL_S = 0.05
_REMIND_S = 30.0


class ImportLock:
    """A file lock of the kernel: it ends with its holder, however that ends."""

    def __init__(self, path: str, book: StageBook, rank: int) -> None:
        self._path = path
        self._book = book
        self._rank = rank
        self._depth = 0
        self._fd = -1

    def around(self, execute: Callable[[], None]) -> None:
        """Runs an import that may run others inside it."""
        if self._depth == 0:
            self._acquire()
        self._depth += 1
        try:
            execute()
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._release()

    def _acquire(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            told_at = 0.0
            while not _try_lock(self._fd):
                now = time.monotonic()
                if now - told_at >= _REMIND_S:
                    self._tell(f"LOCK: waiting for exclusive access...{_holder(self._fd)}")
                    told_at = now
                time.sleep(_POLL_S)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"rank {self._rank}, pid {os.getpid()}".encode(), 0)
        except OSError as error:
            # An import without the lock is better than none.
            self._tell(f"LOCK: not available ({error.strerror}); importing without it")
            return
        self._tell("LOCK: acquired! Starting initialization...")

    def _release(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        os.ftruncate(fd, 0)
        os.close(fd)
        self._tell("LOCK: released")

    def _tell(self, words: str) -> None:
        self._book.mark(words, "lock", None, always=True)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EINTR):
            return False
        raise
    return True


def _holder(fd: int) -> str:
    text = os.pread(fd, 100, 0).decode(errors="replace")
    return f" ({text} holds it)" if text else ""
