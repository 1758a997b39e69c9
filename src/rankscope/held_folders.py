"""Folders of ours at places where others may put something else in their stead: they are held open.

Who may write to a folder may rename what lies in it, whoever that belongs to (unless the folder is sticky, as /tmp is):
a project's folder that a group shares, or a colleague's own. A name that led to the run's folder can then lead to any
other. What is held is reached through its descriptor, which leads to the same folder wherever it is moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_held: dict[str, int] = {}
"""Absolute name → descriptor. For as long as this process lives: a run has one or two."""


class NotOurs(OSError):
    """Something lies there that another user made, or that is not what it should be."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(0, what, str(path))


def hold(path: Path, *, new: bool) -> None:
    """From now on `inside` leads to this very folder. Nothing to do where nobody else can exchange it.

    `new`: we have just made it. Raises NotOurs where something else lies there by now.
    """
    if not exchangeable(path):
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise NotOurs(path, "is a link, where other users may lay another one") from error
    try:
        if (new and os.listdir(fd)) or os.fstat(fd).st_uid != _owner_of_what_we_make(fd):
            raise NotOurs(path, "was exchanged for another folder")
    except BaseException:
        os.close(fd)
        raise
    _held[os.path.abspath(path)] = fd


def let_go(path: Path) -> None:
    """The name stands for whatever it leads to again."""
    fd = _held.pop(os.path.abspath(path), None)
    if fd is not None:
        os.close(fd)


def inside(path: Path) -> Path:
    """The path by which this process reaches what lies at or below a held folder; any other as it is."""
    return _through(path, "self")


def inside_for_children(path: Path) -> Path:
    """The same for the processes that we start; it leads nowhere once this one has ended."""
    if os.stat("/proc/self").st_uid != os.geteuid():
        return path  # the kernel keeps our descriptors from them, as of a Python that was given capabilities
    return _through(path, str(os.getpid()))


def is_held(path: Path) -> bool:
    return os.path.abspath(path) in _held


def moved_to(path: Path) -> Path | None:
    """Where a held folder is by now, if its name leads elsewhere; None also where it was removed."""
    fd = _held.get(os.path.abspath(path))
    if fd is None:
        return None
    here = os.fstat(fd)
    try:
        named = os.stat(path)
    except OSError:
        named = None
    if here.st_nlink == 0 or (named is not None and os.path.samestat(here, named)):
        return None
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


def exchangeable(path: Path) -> bool:
    """Whether a user other than we and root can rename it, or one of the folders above it."""
    return any(map(_others_rename_in, _above(path)))


def _above(path: Path) -> Iterator[str]:
    """The folders above it, both as they are spelled and as they are."""
    named = Path(os.path.abspath(path))
    yield from map(str, named.parents)
    yield from map(str, Path(os.path.realpath(named)).parents)


def _others_rename_in(folder: str) -> bool:
    about = os.lstat(folder)
    if about.st_uid not in (0, os.geteuid()):
        return True  # it is theirs, or a link that they can lay anew
    if stat.S_ISLNK(about.st_mode) or about.st_mode & stat.S_ISVTX:
        return False
    # Many systems give every user a group of that number, with nobody else in it.
    shared = about.st_mode & stat.S_IWGRP and not about.st_gid == about.st_uid == os.geteuid()
    return bool(shared or about.st_mode & stat.S_IWOTH)


def _owner_of_what_we_make(folder: int) -> int:
    """Who that is the file system says: on some network disks root is nobody."""
    name = f".owner.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        os.unlink(name, dir_fd=folder)


def _through(path: Path, process: str) -> Path:
    if not _held:
        return path
    name = os.path.abspath(path)
    for folder, fd in _held.items():
        if name == folder or name.startswith(f"{folder}/"):
            return Path(f"/proc/{process}/fd/{fd}{name[len(folder) :]}")
    return path
