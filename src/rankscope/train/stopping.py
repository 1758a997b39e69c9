"""SIGTERM and Ctrl-C ask for a stop; the loop decides, together with the other ranks, after which step."""

from __future__ import annotations

import signal
from types import FrameType


class StopWish:
    """Notes the signals; a second one of the same kind does what it always did."""

    def __init__(self) -> None:
        self.wanted = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in self._before:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.wanted = True
        signal.signal(number, self._before[signal.Signals(number)])

    def forget(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
