"""Where output goes: a console that may close or block, files whose disk may be full. Neither ever raises."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import BinaryIO

from rankscope.private_files import make_missing_folders, open_private_log
from rankscope.report.screen import Screen, write_all

_BACKLOG = 1 << 20
_RETRY_S = 1.0


class Console:
    """Writes to the stream's descriptor itself: a blocked write then holds no lock that others need."""

    def __init__(self, stream: BinaryIO, name: str, screen: Screen | None = None) -> None:
        self._stream = stream
        self._name = name
        self._fd = _descriptor(stream)
        self._screen = screen if screen is not None and screen.is_terminal(self._fd) else None
        self._closed = False
        self._writing_since: float | None = None
        self.problem: str | None = None

    @property
    def on_screen(self) -> bool:
        """Whether lines can stay in place there."""
        return self._screen is not None

    @property
    def blocked_s(self) -> float:
        """How long the write in progress has been waiting for the reader; 0 when there is none."""
        since = self._writing_since
        return 0.0 if since is None else time.monotonic() - since

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        self._writing_since = time.monotonic()
        try:
            if self._screen is not None:
                self._screen.write(data)
            elif self._fd is None:
                self._stream.write(data)
                self._stream.flush()
            else:
                write_all(self._fd, data)
        except (OSError, ValueError) as error:
            # A full disk may have room later; a closed pipe or stream stays closed.
            self._closed = isinstance(error, BrokenPipeError | ValueError)
            self.problem = self.problem or f"{self._name}: {_reason(error)}"
        finally:
            self._writing_since = None


class LogFile:
    """Appends to a file. While that fails, the newest bytes are kept and tried again once a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self._fd: int | None = None
        self._backlog = b""
        self._retry_at = 0.0
        self._flush(force=True)

    def write(self, data: bytes) -> None:
        self._backlog += data
        self._flush(force=False)

    def close(self) -> None:
        self._flush(force=True)
        self._close()

    def _flush(self, *, force: bool) -> None:
        if time.monotonic() < self._retry_at and not force:
            self._backlog = self._backlog[-_BACKLOG:]
            return
        try:
            if self._fd is None:
                make_missing_folders(self.path.parent)
                self._fd = open_private_log(self.path)
            while self._backlog:
                self._backlog = self._backlog[os.write(self._fd, self._backlog) :]
        except OSError as error:
            self.problem = self.problem or f"{self.path}: {_reason(error)}"
            self._retry_at = time.monotonic() + _RETRY_S
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            os.close(fd)
        except OSError as error:  # Network file systems report lost writes here.
            self.problem = self.problem or f"{self.path}: {_reason(error)}"


def _descriptor(stream: BinaryIO) -> int | None:
    try:
        stream.flush()
        return stream.fileno()
    except (io.UnsupportedOperation, OSError, ValueError):
        return None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
