"""The key that the launchers of one job share, and that never travels through the store they talk over.

From RANKSCOPE_KEY, from a file of `--node-key-file`, or from a file in the run's folder where the nodes share it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from rankscope.errors import UsageError

VARIABLE = "RANKSCOPE_KEY"
FILE = ".node-key"
_LEAST, _MOST = 16, 4096


def find_key(file: Path | None, shared: Path | None) -> bytes | None:
    """The key, or None where nobody gave one. `shared`: a run folder that the nodes may have in common.

    The variable is taken out of the environment: the ranks need not know it.
    """
    told = os.environ.pop(VARIABLE, "")
    if file is not None:
        return _read(file, "--node-key-file")
    if told:
        if len(told) < _LEAST:
            raise UsageError(f"{VARIABLE} is too short for a key: give at least {_LEAST} characters")
        return told.encode("utf-8", "surrogateescape")
    return _shared_key(shared / FILE) if shared is not None else None


def _shared_key(path: Path) -> bytes:
    """Whoever comes first makes it. Nodes that share no disk make different ones, and so find out."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(8).hex()}")
    try:
        if not path.is_symlink() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(os.urandom(32).hex().encode())
            with suppress(FileExistsError):  # another node was faster
                os.link(new, path)
    except OSError as error:
        raise UsageError(f"the key of the nodes '{path}' cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            new.unlink()
    return _read(path, "the key of the nodes")


def _read(path: Path, called: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise UsageError(f"{called} '{path}' is no file")
            if about.st_uid not in (0, os.geteuid()):
                raise UsageError(f"{called} '{path}' belongs to user {about.st_uid}: it must be yours")
            if about.st_mode & 0o077:
                raise UsageError(f"{called} '{path}' can be read by others: chmod 600 '{path}'")
            key = file.read(_MOST + 1).strip()
    except OSError as error:
        raise UsageError(f"{called} '{path}' cannot be read: {error.strerror}") from error
    if not _LEAST <= len(key) <= _MOST:
        raise UsageError(f"{called} '{path}' holds {len(key)} bytes: a key has {_LEAST} to {_MOST}")
    return key
