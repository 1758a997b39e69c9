"""The terminal: lines that scroll, and below them a few that stay in place and are drawn again."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Sequence

from rankscope.terminal_text import columns as columns_of
from rankscope.terminal_text import without_escapes

_LOCK_S = 2.0
"""A terminal that was stopped holds whoever writes; a signal handler that speaks waits no longer than that."""


class Screen:
    """Several threads write; nothing of theirs is ever mixed within a line, or with what stands in place."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.RLock()
        self._parts: dict[str, tuple[str, ...]] = {}
        self._drawn: tuple[str, ...] = ()
        self._open = True

    def is_terminal(self, fd: int | None) -> bool:
        """Whether what is written there is seen here."""
        if fd is None or not os.isatty(fd):
            return False
        return fd == self._fd or os.path.samestat(os.fstat(fd), os.fstat(self._fd))

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; narrow and low where the terminal does not tell."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return columns or 80, lines or 24

    def write(self, data: bytes) -> None:
        """Whole lines, above what stands in place. Raises OSError as writing does."""
        with _Held(self._lock):
            drawn = self._drawn
            write_all(self._fd, _erased(drawn) + data + _drawing(drawn) if drawn else data)

    def keep(self, part: str, lines: Sequence[str]) -> None:
        """These lines of that part stand in place from now on; parts stand in the order of their names."""
        with _Held(self._lock):
            if not self._open:
                return
            self._parts[part] = tuple(lines)
            columns, rows = self.size
            wanted = [cut(line, columns - 1) for name in sorted(self._parts) for line in self._parts[name]]
            shown = tuple(wanted[-max(1, rows - 1) :])
            if shown != self._drawn:
                data = _erased(self._drawn) + _drawing(shown)
                self._drawn = shown
                _best_effort(self._fd, data)

    def close(self) -> None:
        """What stood in place goes; lines may still be written."""
        with _Held(self._lock):
            self._open = False
            erased, self._drawn = _erased(self._drawn), ()
            _best_effort(self._fd, erased)


class _Held:
    """The lock, or after a while not even that: what is said then may be torn, and is said."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._got = False

    def __enter__(self) -> None:
        self._got = self._lock.acquire(timeout=_LOCK_S)

    def __exit__(self, *_: object) -> None:
        if self._got:
            self._lock.release()


def open_screen() -> Screen | None:
    """On standard error, where that is a terminal that can move its cursor."""
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError):
        return None
    if not os.isatty(fd) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return Screen(fd)


def cut(line: str, columns: int) -> str:
    """Not wider than that many columns, without any escape."""
    text = "".join(character if character.isprintable() else " " for character in without_escapes(line))
    width = 0
    for at, character in enumerate(text):
        width += columns_of(character)
        if width > columns:
            return text[: max(0, at - 1)] + "…"
    return text


def _erased(drawn: Sequence[str]) -> bytes:
    if not drawn:
        return b""
    up = f"\x1b[{len(drawn) - 1}A" if len(drawn) > 1 else ""
    return f"\r{up}\x1b[J".encode()


def _drawing(lines: Sequence[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "replace")


def _best_effort(fd: int, data: bytes) -> None:
    try:
        write_all(fd, data)
    except OSError:
        return  # the terminal is gone; the same is in the run's folder


def write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # Someone made the terminal non-blocking for all who share it.
            select.select([], [fd], [])
