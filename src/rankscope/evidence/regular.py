"""Files of others are opened only where reading them comes to an end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from rankscope.errors import EvidenceError

LARGEST = 4 << 30
LEADS_OUT = "is a link that leads out of the folder: give what it leads to by itself"


def leads_out(path: str | Path, folder: str | Path) -> bool:
    """Whether what lies there is somewhere else: a folder that somebody sent may link to files of the reader."""
    real, root = os.path.realpath(path), os.path.realpath(folder)
    return real != root and not real.startswith(root.rstrip("/") + "/")


def open_regular(path: str | Path) -> BinaryIO:
    """A plain file with something in it. Raises EvidenceError for pipes, devices and what the kernel makes up while it
    is read (/proc/kmsg waits for the next message), OSError where it cannot be opened."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise EvidenceError("is no plain file")
        if about.st_size == 0:
            raise EvidenceError("is empty")  # files of the kernel have no size
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_regular(path: str | Path, most: int = LARGEST) -> bytes:
    """All of it. Raises as `open_regular`, and where it is larger than that."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size  # asked first: a file can be larger than the memory
        # Room is taken for all that is asked for: what a file that grows has more of is left.
        data = file.read(min(most, 2 * size) + 1) if size <= most else b""
    if max(size, len(data)) > most:
        raise EvidenceError(f"is larger than {most >> 20} MB")
    return data
