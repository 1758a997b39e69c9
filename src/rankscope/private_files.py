"""Files and folders that only their owner may read, at places where others may have left links for us."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class NotOurs(OSError):
    """Something lies there that another user made, or that is not what it should be."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(0, what, str(path))


def make_private_folder(path: Path) -> None:
    """Makes the folder and those above it, mode 0700. One that is there must be a folder of our own, and no link
    of another user's. Raises NotOurs, or another OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
        return  # whoever the file system says it belongs to: we have just made it
    except FileExistsError:
        pass
    link = os.lstat(path)
    if stat.S_ISLNK(link.st_mode) and not _trusted(link.st_uid):
        raise NotOurs(path, f"is a link that user {link.st_uid} made")
    about = os.stat(path)
    if not stat.S_ISDIR(about.st_mode):
        raise NotOurs(path, "is no folder")
    if about.st_uid != os.geteuid():
        raise NotOurs(path, f"belongs to user {about.st_uid}")


def make_own_folder(path: Path) -> None:
    """The same for a folder inside of one of ours, where a link has no place at all."""
    make_private_folder(path)
    if path.is_symlink():
        raise NotOurs(path, "is a link")


def write_private(path: Path, data: bytes | Iterable[bytes], *, sync: bool = False) -> None:
    """Data, or pieces of it that are too large to hold together. A reader sees the old file or the new one, never a
    part. What lies there as a link is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(os.open(temporary, _NEW, 0o600), "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        with suppress(OSError):  # after the rename it is not there; where it cannot be removed, the write says why
            temporary.unlink()


def open_private_log(path: Path) -> int:
    """A descriptor that appends to the file; never follows a link, never waits for the reader of a pipe."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotOurs(path, "is a pipe")
    return fd


def _trusted(user: int) -> bool:
    return user in (0, os.geteuid())


class Reserve:
    """Room that is taken while there is some, and given back for what must be written in the end."""

    def __init__(self, folder: Path, size: int = 1 << 18) -> None:
        self._path = folder / ".reserve"
        with suppress(OSError):  # no room now, or no such call on this file system: then there is no reserve
            fd = os.open(self._path, _NEW, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)

    def release(self) -> None:
        with suppress(OSError):  # released already
            self._path.unlink()
