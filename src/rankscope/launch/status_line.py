"""The status line: how far the job is, in place on the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rankscope.errors import EvidenceError
from rankscope.evidence.pages import read_heartbeat
from rankscope.launch.job import Job
from rankscope.report import progress_words
from rankscope.report.meter import Meter
from rankscope.report.screen import Screen

_PERIOD_S = 1.0


class StatusLine:
    """Runs in a thread of its own; `where` says what the ranks do before their first step."""

    def __init__(self, job: Job, screen: Screen, where: Callable[[float], str]) -> None:
        self._job = job
        self._screen = screen
        self._where = where
        self._meter = Meter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PERIOD_S)
        self._screen.keep("status", ())

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            if not self._job.ranks:
                continue
            try:
                self._screen.keep("status", [self._line(time.time())])
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the line; it is told at the end
                self._job.note_problem(f"the status line failed: {type(error).__name__}: {error}")

    def _line(self, now: float) -> str:
        beats = {}
        for rank, page in self._job.pages_of_ranks().items():
            try:
                beats[rank] = read_heartbeat(page)
            except EvidenceError as error:
                self._job.note_problem(str(error))
        figures = self._meter.read(beats, len(self._job.ranks), now)
        if not figures.steps:
            figures = progress_words.Figures(figures.ranks, 0, where=self._where(now))
        return progress_words.status(figures, self._job.lang)
