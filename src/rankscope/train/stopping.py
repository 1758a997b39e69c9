"""SIGTERM and Ctrl-C ask for a stop; the loop decides, together with the other ranks, after which step."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

_LEAST_S = 5.0
_STEPS = 4.0


class StopWish:
    """Notes the first signal; a second one does what it always did.

    A rank that makes no step any more (it waits for one that is gone) could never follow the wish: it ends as it would
    have without us, after the time of several steps.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._moved_at = time.monotonic()
        self._longest = 0.0
        self._over = False
        for number in self._before:
            signal.signal(number, self._note)

    def moved(self) -> None:
        """A step has been made."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._moved_at)
        self._moved_at = now

    def steps_are_over(self) -> None:
        """What comes now (a last save) may take its time."""
        self._over = True

    def forget(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.forget()
        self.wanted = True
        threading.Thread(target=self._insist, name="rankscope-stop", daemon=True).start()

    def _insist(self) -> None:
        """The main thread may stand in a call that no Python handler interrupts; the system's own way does."""
        heard_at = time.monotonic()
        while not self._over:
            if time.monotonic() - max(self._moved_at, heard_at) > max(_LEAST_S, _STEPS * self._longest):
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.2)
