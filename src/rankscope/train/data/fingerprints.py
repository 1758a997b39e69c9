"""What identifies a file's content, remembered for files that did not change since."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from rankscope.errors import DataError, RankscopeError
from rankscope.train.data.storing import write_whole

_SETTLED_S = 2.0
"""A file written this recently may change again without its time of change telling."""


class Fingerprints:
    """SHA-256 of files. A file of the same size, inode and time of change as before is not read again."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known: dict[str, Any] = _read(store)
        self._changed = False

    def of(self, path: str) -> str:
        absolute = os.path.abspath(path)
        try:
            before = _identity(absolute)
            known = self._known.get(absolute)
            if isinstance(known, list) and known[:-1] == before:
                return str(known[-1])
            found = _hash(absolute)
            after = _identity(absolute)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        if before != after:
            raise DataError(f"{path} is being written to; wait until it is complete")
        if time.time() - before[1] / 1e9 > _SETTLED_S:
            self._known[absolute] = [*before, found]
            self._changed = True
        return found

    def save(self) -> None:
        """Only saves time, so a folder that cannot be written to is no failure of the run."""
        if not self._changed:
            return
        try:
            write_whole(self._store, json.dumps(self._known).encode())
        except (RankscopeError, OSError):
            return
        self._changed = False


def _identity(path: str) -> list[int]:
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _read(store: Path) -> dict[str, Any]:
    try:
        known = json.loads(store.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
