"""A stream of bytes cut into the lines that a person sees; no I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LONGEST_LINE = 64 * 1024


class Cut(NamedTuple):
    raw: bytes
    """As the rank wrote it, line ending included."""
    text: bytes | None
    """The line to show; None where a progress bar's state was overwritten by the next."""


class LineCutter:
    """Keeps the unfinished line. A carriage return throws away what stands before it, as on a terminal."""

    def __init__(self) -> None:
        self._rest = b""
        self._piece = False
        self._progress = False

    @property
    def state(self) -> bytes | None:
        """What a progress bar shows now; None when the unfinished line is not one."""
        return self.unfinished if self._progress else None

    @property
    def unfinished(self) -> bytes:
        return self._rest.strip(b"\r")

    def feed(self, chunk: bytes) -> Iterator[Cut]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield from self._line(line)
        yield from self._overwritten()
        while len(self._rest) > LONGEST_LINE:
            piece, self._rest = self._rest[:LONGEST_LINE], self._rest[LONGEST_LINE:]
            self._piece = True
            yield Cut(piece, piece.replace(b"\r", b""))

    def end(self) -> Iterator[Cut]:
        """The stream is over: what is left is a line."""
        if self._rest:
            yield Cut(self._rest, self.unfinished or None)
        self._rest, self._piece, self._progress = b"", False, False

    def _line(self, line: bytes) -> Iterator[Cut]:
        raw, text = line + b"\n", line.rstrip(b"\r").rpartition(b"\r")[2]
        if not text and (self._piece or self._progress):
            yield Cut(raw, None)
        elif len(raw) <= LONGEST_LINE:
            yield Cut(raw, text)
        else:
            for at in range(0, len(raw), LONGEST_LINE):
                piece = raw[at : at + LONGEST_LINE]
                yield Cut(piece, piece.strip(b"\r\n").rpartition(b"\r")[2] or None)
        self._piece = self._progress = False

    def _overwritten(self) -> Iterator[Cut]:
        if b"\r" not in self._rest:
            return
        self._progress = True
        start = self._rest.rstrip(b"\r").rfind(b"\r") + 1
        if start:
            gone, self._rest = self._rest[:start], self._rest[start:]
            yield Cut(gone, None)
