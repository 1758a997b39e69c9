"""Files and folders that only their owner may read, at places where others may have left links for us."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rankscope.held_folders import NotOurs, hold, inside, is_held, let_go

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def make_private_folder(path: Path) -> bool:
    """Makes the folder, mode 0700, and those above it; whether it was not there yet. One that is there must be a folder
    of our own, and no link of another user's. Raises NotOurs, or another OSError."""
    if is_held(path):
        return False
    place = inside(path)
    if not place.parent.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(place, 0o700)
        return True  # whoever the file system says it belongs to: we have just made it
    except FileExistsError:
        pass
    link = os.lstat(place)
    if stat.S_ISLNK(link.st_mode) and not _trusted(link.st_uid):
        raise NotOurs(path, f"is a link that user {link.st_uid} made")
    about = os.stat(place)
    if not stat.S_ISDIR(about.st_mode):
        raise NotOurs(path, "is no folder")
    if about.st_uid != os.geteuid():
        raise NotOurs(path, f"belongs to user {about.st_uid}")
    return False


def make_held_folder(path: Path) -> None:
    """The same for one that stays this very folder for us, whatever others put in its place."""
    let_go(path)  # of an earlier run of this process, which may have been moved aside
    hold(path, new=make_private_folder(path))


def make_own_folder(path: Path) -> None:
    """The same for a folder inside of one of ours, where a link has no place at all."""
    make_private_folder(path)
    if not is_held(path) and inside(path).is_symlink():
        raise NotOurs(path, "is a link")


def make_missing_folders(path: Path) -> None:
    """A folder in one of ours that somebody may have removed since, and what is missing above it; mode 0700."""
    for folder in reversed((path, *path.parents)):
        if not inside(folder).exists():
            make_private_folder(folder)


def write_private(path: Path, data: bytes | Iterable[bytes], *, sync: bool = False) -> None:
    """Data, or pieces of it that are too large to hold together. A reader sees the old file or the new one, never a
    part. What lies there as a link is replaced, not followed."""
    path = inside(path)
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
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(inside(path), flags, 0o600)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotOurs(path, "is a pipe")
    return fd


def _trusted(user: int) -> bool:
    return user in (0, os.geteuid())


class Reserve:
    """Room that is taken while there is some, and given back for what must be written in the end."""

    def __init__(self, folder: Path, size: int = 1 << 18) -> None:
        self._path = inside(folder) / ".reserve"
        with suppress(OSError):  # no room now, or no such call on this file system: then there is no reserve
            fd = os.open(self._path, _NEW, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)

    def release(self) -> None:
        with suppress(OSError):  # released already
            self._path.unlink()
