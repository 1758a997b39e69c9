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
    """Notes the signals; a second one of the same kind does what it always did.

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

    def _note(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, self._before[signal.Signals(number)])
        if not self.wanted:
            self.wanted = True
            threading.Thread(target=self._insist, args=(number,), name="rankscope-stop", daemon=True).start()

    def _insist(self, number: int) -> None:
        """The main thread may stand in a call that no Python handler interrupts; the system's own way does."""
        heard_at = time.monotonic()
        while not self._over:
            patience = max(_LEAST_S, _STEPS * self._longest)
            if time.monotonic() - max(self._moved_at, heard_at) > patience:
                # Python's own handler for SIGINT would wait for the main thread too.
                os.kill(
                    os.getpid(), number if self._before[signal.Signals(number)] == signal.SIG_DFL else signal.SIGTERM
                )
                return
            time.sleep(0.2)
