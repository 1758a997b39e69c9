"""The text of the user's files in which stacks stand, so that a saved incident can be read elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from rankscope.evidence.model import Frame, Source
from rankscope.evidence.time_limit import call_within
from rankscope.mask import mask_code

MAX_BYTES = 256 * 1024
READ_LIMIT_S = 2.0


def read_sources(frames: Iterable[Frame]) -> tuple[Source, ...]:
    """Each user file among the frames of processes that were looked at, whole, in the order of mention; secrets masked,
    line numbers kept.

    Files that cannot be read, are no plain files, or are larger than 256 KB are left out.
    """
    files = dict.fromkeys(frame.file for frame in frames if frame.user and not frame.native)
    return tuple(as_source(file, text) for file, text in texts_of(files))


def texts_of(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each file that can be read, with its text as it is: nothing of it is masked yet."""
    for file in files:
        try:
            data = call_within(READ_LIMIT_S, lambda file=file: _read(file))  # type: ignore[misc]
        except (OSError, ValueError):
            continue
        if data is not None:
            yield file, data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def as_source(file: str, text: str) -> Source:
    return Source(file, 1, mask_code(text))


def _read(file: str) -> bytes | None:
    # Nonblocking: the name may be a FIFO by now, and opening one waits for a writer.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            return None
        data = opened.read(MAX_BYTES + 1)
    return data if len(data) <= MAX_BYTES else None
