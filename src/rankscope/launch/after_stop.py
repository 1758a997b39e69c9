"""Which lines of a rank are only the echo of our stopping it: Python's tracebacks. No I/O here."""

from __future__ import annotations

import re

_RANK = re.compile(rb"\[rank\d+\]: ?")
"""Torch's own hook puts it before every line of a traceback."""
_BEGIN = re.compile(rb"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
_LINKS = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)


class TracebackFilter:
    """For one stream of a rank that was told to stop: says of each line whether it belongs to a traceback."""

    def __init__(self) -> None:
        self._inside = False
        self._ended = False
        """The exception itself has been said: what follows may be another one, or the program's own words."""
        self._by_torch = False

    def is_echo(self, line: bytes) -> bool:
        prefix = _RANK.match(line)
        text = line[prefix.end() :] if prefix else line
        if _BEGIN.match(text):
            self._inside, self._ended, self._by_torch = True, False, prefix is not None
            return True
        if not self._inside:
            return False
        if self._ended:
            self._inside = not text.strip() or text.strip() in _LINKS or (self._by_torch and prefix is not None)
            return self._inside
        self._ended = text[:1] not in (b" ", b"\t", b"")
        return True
