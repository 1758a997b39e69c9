"""What a rank writes when torch's own watchdog gives a collective up: from then on its end is settled, and far away."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankscope.diagnosis.rules.crashes.known_errors import recognise_lines
from rankscope.launch.job import RankProcess
from rankscope.launch.output import OutputPump

_LINES = 40
_HEARTBEAT = re.compile(r"Heartbeat monitor timed out|watchdog got stuck for")


def gives_up(lines: Iterable[str]) -> bool:
    """Torch's watchdog has found a collective beyond its time limit, or has found itself stuck. It lets all ranks dump,
    waits for that, and takes the process down a minute later; who did not come may be at work all the while."""
    written = tuple(lines)
    known = recognise_lines(written, ("victim",))
    return (known is not None and known.name == "collective-timeout") or any(map(_HEARTBEAT.search, written))


class WatchdogWords:
    """Reads what the ranks of one attempt write, as far as it is new."""

    def __init__(self) -> None:
        self._read: dict[int, float] = {}

    def new_word(self, living: Iterable[RankProcess], pump: OutputPump) -> bool:
        """Whether a rank has said so since the last question."""
        said = [self._said(process, pump) for process in living]
        return any(said)

    def _said(self, process: RankProcess, pump: OutputPump) -> bool:
        key = (process.local_rank, "stderr")
        written = pump.last_output_at(key)
        if written is None or written <= self._read.get(process.rank, 0.0):
            return False
        self._read[process.rank] = written
        return gives_up(pump.tail(key, _LINES))
