"""The status line: how far the job is, in place on the terminal."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from rankscope.diagnosis.rules.numbers.stragglers import between
from rankscope.diagnosis.verdict import Straggler
from rankscope.errors import EvidenceError
from rankscope.evidence.model import Phases
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.launch.job import Job
from rankscope.report import progress_words
from rankscope.report.progress_words import Figures
from rankscope.report.screen import Screen

_PERIOD_S = 1.0
_RATE_S = 10.0
"""Over which the speed is taken."""
_PACE_S = 10.0
"""Over which the ranks are compared."""


class Meter:
    """Speed and the slowest rank, from heartbeats that are read now and then. No I/O here."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._moved_at = 0.0
        self._base: dict[int, Phases] = {}
        self._slow: Straggler | None = None

    def read(self, beats: Mapping[int, Heartbeat], ranks: int, now: float) -> Figures:
        steps = min((beat.steps for beat in beats.values()), default=0)
        if not self._seen or steps < self._seen[-1][1]:
            self._seen.clear()  # the ranks were started again
            self._base, self._slow, self._moved_at = {}, None, now
        elif steps > self._seen[-1][1]:
            self._moved_at = now
        self._seen.append((now, steps))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_S:
            self._seen.popleft()
        if len(beats) == ranks:
            self._compare({rank: beat.phases for rank, beat in beats.items() if beat.phases is not None}, ranks)
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (last_at - first_at) if last > first else None
        return Figures(ranks, steps, rate, now - self._moved_at, self._slow)

    def _compare(self, times: dict[int, Phases], ranks: int) -> None:
        if len(times) < ranks:
            return
        if self._base.keys() != times.keys():
            self._base = times
            return
        added = {rank: between(self._base[rank], phases) for rank, phases in times.items()}
        if min(phases.until - phases.since for phases in added.values()) >= _PACE_S:
            self._base = times
            self._slow = progress_words.slowest(added)


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
        return progress_words.status(figures)
