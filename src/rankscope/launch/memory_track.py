"""How the memory of a rank grew: few marks, however long the job runs."""

from __future__ import annotations

from rankscope.evidence.model import MemoryMark
from rankscope.evidence.procfs import resident_bytes

MOST_KEPT = 64


class MemoryTrack:
    """Marks at even distances, which double when there are too many; the newest is always kept."""

    def __init__(self) -> None:
        self._kept: list[MemoryMark] = []
        self._newest: MemoryMark | None = None
        self._distance_s = 0.0

    def note(self, pid: int, now: float) -> None:
        try:
            found = resident_bytes(pid)
        except OSError:
            return  # it is ending; the next poll tells how
        if found:
            self.add(MemoryMark(now, found))

    def add(self, mark: MemoryMark) -> None:
        self._newest = mark
        if self._kept and mark.at - self._kept[-1].at < self._distance_s:
            return
        self._kept.append(mark)
        if len(self._kept) > MOST_KEPT:
            self._kept = self._kept[::2]
            self._distance_s = 2 * (self._kept[-1].at - self._kept[0].at) / MOST_KEPT

    @property
    def marks(self) -> tuple[MemoryMark, ...]:
        if self._newest is None or self._kept[-1] is self._newest:
            return tuple(self._kept)
        return (*self._kept, self._newest)
