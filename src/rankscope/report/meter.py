"""Speed and the slowest rank of a job that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from rankscope.diagnosis.rules.numbers.stragglers import between
from rankscope.diagnosis.verdict import Straggler
from rankscope.evidence.model import Phases
from rankscope.report import progress_words
from rankscope.report.progress_words import Figures

_RATE_S = 10.0
"""Over which the speed is taken."""
_PACE_S = 10.0
"""Over which the ranks are compared."""


class Beat(Protocol):
    """What a page says of a rank's steps."""

    @property
    def steps(self) -> int: ...

    @property
    def phases(self) -> Phases | None: ...


class Meter:
    """Speed and the slowest rank, from what the pages say now and then. No I/O here."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._moved_at = 0.0
        self._base: dict[int, Phases] = {}
        self._slow: Straggler | None = None

    def read(self, beats: Mapping[int, Beat], ranks: int, now: float) -> Figures:
        steps = min((beat.steps for beat in beats.values()), default=0)
        if not self._seen or steps < self._seen[-1][1]:
            self._seen.clear()  # the ranks were started again
            self._base, self._slow, self._moved_at = {}, None, now
        elif steps > self._seen[-1][1]:
            self._moved_at = now
        self._seen.append((now, steps))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_S:
            self._seen.popleft()
        if beats and len(beats) == ranks:
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
