"""Writing that either happens whole or not at all, one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rankscope.errors import NoRoom, UsageError

_LOOK_AGAIN_S = 0.1
_SAY_AGAIN_S = 60.0
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@contextlib.contextmanager
def exclusive(lock: Path, doing: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds a lock that dies with its process. Says whom it waits for."""
    with storing(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _wait(file, lock, doing, say)
        with storing(lock.parent):
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def is_free(lock: Path) -> bool:
    """Whether nobody holds this lock now."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _wait(file: int, lock: Path, doing: str, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    said: float | None = None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            now = time.monotonic()
            if said is None or now - said >= _SAY_AGAIN_S:
                holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "another process"
                holder = f"process {holder}" if holder.isdigit() else holder
                say(f"{holder} is {doing}: waiting for it, {now - began:.0f} s so far (lock: {lock})")
                said = now
            time.sleep(_LOOK_AGAIN_S)
    if said is not None:
        say(f"waited {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def storing(place: Path) -> Iterator[None]:
    """Turns a full or forbidden disk into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoRoom(
                f"writing under {place} failed: {error.strerror or error}. Nothing unfinished was kept; free some "
                "space, or write another data.cache_dir"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
            raise UsageError(f"cannot write under {place}: {error.strerror}; write another data.cache_dir") from error
        raise


def write_whole(path: Path, content: bytes) -> None:
    """The file is there with all its content, or as it was before."""
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in it last."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
