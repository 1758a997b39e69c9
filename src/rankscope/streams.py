"""The standard streams of a command, whatever they were made to be: closed, on a full disk, read by nobody."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


class OutputLost(OSError):
    """Standard output cannot be written; somebody may rely on what was to be there."""


_lost: list[OutputLost] = []
"""Of this process: whoever wrote may have passed over it, as argparse does."""


def prepare_streams() -> None:
    """Call it first of all: a file that takes the number of a closed stream would be written over.

    A closed stream is as good as /dev/null. Standard output says with `OutputLost` that it cannot be written; what
    cannot be said on standard error is not said, and changes nothing.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    sys.stdout = _stream(1, sys.stdout, _Output)
    sys.stderr = _stream(2, sys.stderr, _Said)


def finish_output() -> None:
    """Writes what is left. Raises OutputLost where anything of it all could not be written."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if _lost:
        raise _lost[0]


def flush_streams() -> None:
    """As far as they can be; for a process that ends without Python's own end."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
                stream.flush()


def give_up_output() -> None:
    """What is still to be written is dropped: Python would try it again at exit, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _lost.append(OutputLost(error.errno, error.strerror))
            raise _lost[-1] from None


class _Said(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _stream(fd: int, before: Any, kind: type[io.FileIO]) -> TextIO:
    """As Python makes it; `before` is None where the stream was closed when Python started."""
    raw = kind(fd, "w", closefd=False)
    if before is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n")
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
