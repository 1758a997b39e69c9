"""A job whose ranks somebody else started and waits for."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Exit
from rankscope.evidence.pages import read_page
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
        self._stopping_since: float | None = None

    def poll(self) -> None:
        """Notes who has ended since, and whether by itself: one that a signal ended after another rank had failed was
        stopped because of that."""
        self._ends.look_for_failed_work()
        ended = [(process, self._ends.of(process.pid)) for process in self.ranks if process.exit is None]
        fresh = sorted(
            ((process, end) for process, end in ended if end is not None),
            key=lambda each: (each[1].code in _STOPS, each[1].at),
        )
        self._stopping_since = (self._stopping_since or time.time()) if self.stopping else None
        for process, end in fresh:
            stopped = self._stopped_it(process, end) or (end.code in _STOPS and self._failed_before(process, end))
            process.exit = Exit(code=end.code, at=end.at, by_launcher=stopped)

    def _stopped_it(self, process: RankProcess, end: Ended) -> bool:
        """Not one that was on its way out already, by an exception of its own."""
        if self._stopping_since is None:
            return False
        page = self.page_of(process)
        if end.code <= 0 or page is None:
            return True
        try:
            raised = read_page(page, newest_calls=0).exceptions
        except EvidenceError:
            return True
        before = self._stopping_since
        return not any(each.source == "hook" and each.at is not None and each.at < before for each in raised)

    def _failed_before(self, process: RankProcess, end: Ended) -> bool:
        failed = [other.exit.at for other in self.failed() if other is not process and other.exit is not None]
        latest = end.at if end.code == -signal.SIGKILL else end.at + _SAME_MOMENT_S
        return any(earlier < latest for earlier in failed)
