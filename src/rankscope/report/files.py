"""A report on disk: written whole or not at all, readable by its owner only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_report(path: Path, data: bytes) -> None:
    """Raises OSError. A reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
        temporary.replace(path)
    finally:
        with suppress(OSError):  # after the rename it is not there
            temporary.unlink()
