"""How far a preparation is: `prepare(config, bar.say, bar.show)`, then `bar.clear()`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


class ProgressBar:
    """A line at the bottom of a terminal that shows how far it is; elsewhere, nothing."""

    WIDTH = 30
    EVERY_S = 0.1

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn: float | None = None

    def say(self, line: str) -> None:
        """Above the bar."""
        self.clear()
        self._say(line)

    def show(self, done: int, total: int, tokens: int) -> None:
        now = time.monotonic()
        if self._drawn is None:
            self._began = min(self._began, now)
        elif now - self._drawn < self.EVERY_S:
            return
        self._drawn = now
        if not self._is_terminal:
            return
        share = min(1.0, done / total) if total else 1.0
        speed = done / 1e6 / max(now - self._began, 1e-3)
        filled = round(share * self.WIDTH)
        left = (total - done) / 1e6 / speed if speed else 0.0
        sys.stderr.write(
            f"\r\033[K{'█' * filled}{'░' * (self.WIDTH - filled)} {share:4.0%}  {tokens:,} tokens  {speed:.1f} MB/s  "
            f"{left:.0f} s left"
        )
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_terminal and self._drawn is not None:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
