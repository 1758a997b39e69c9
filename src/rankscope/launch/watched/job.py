"""A job whose ranks somebody else started and waits for."""

from __future__ import annotations

import signal
from pathlib import Path

from rankscope.evidence.model import Exit
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.output import OutputPump
from rankscope.launch.watched.ends import Ended, Ends

_STOPS = frozenset({-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP})
"""How launchers end the others once one has failed."""
_SAME_MOMENT_S = 0.02
"""Ends that are seen together may be seen in the wrong order. Nobody kills with SIGKILL at once."""


class WatchedJob(Job):
    def __init__(
        self,
        folder: Path,
        pages: Path,
        command: tuple[str, ...],
        versions: dict[str, str],
        pump: OutputPump,
        ends: Ends,
    ) -> None:
        super().__init__(folder, pages, command, versions, pump)
        self._ends = ends

    def poll(self) -> None:
        """Notes who has ended since, and whether by itself: one that a signal ended after another rank had failed was
        stopped because of that."""
        ended = [(process, self._ends.of(process.pid)) for process in self.ranks if process.exit is None]
        fresh = sorted(
            ((process, end) for process, end in ended if end is not None),
            key=lambda each: (each[1].code in _STOPS, each[1].at),
        )
        for process, end in fresh:
            stopped = self.stopping or (end.code in _STOPS and self._failed_before(process, end))
            process.exit = Exit(code=end.code, at=end.at, by_launcher=stopped)

    def _failed_before(self, process: RankProcess, end: Ended) -> bool:
        failed = [other.exit.at for other in self.failed() if other is not process and other.exit is not None]
        latest = end.at if end.code == -signal.SIGKILL else end.at + _SAME_MOMENT_S
        return any(earlier < latest for earlier in failed)
