"""A quick look at the ranks of a job: their pages, /proc and the driver. Asks the ranks nothing, costs them nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence import procfs
from rankscope.evidence.collect import find_page
from rankscope.evidence.gpus import read_gpus
from rankscope.evidence.model import Gpu, Progress
from rankscope.evidence.pages import read_page

_NEWEST_CALLS = 64


class WatchedRank(msgspec.Struct, frozen=True):
    rank: int
    pid: int
    page: Path | None = None
    """None: not known yet, or there is none."""


class RankGlance(msgspec.Struct, frozen=True):
    rank: int
    pid: int
    at: float
    alive: bool
    state: str = ""
    """The kernel's letter."""
    memory_bytes: int = 0
    """Of the host, children included."""
    cpu_s: float = 0.0
    progress: Progress | None = None
    """None without a page: a job that somebody else started."""
    gpus: tuple[Gpu, ...] = ()


class Glances:
    """`pages` is the folder of a job of ours. Remembers the pages that were found."""

    def __init__(self, ranks: Sequence[WatchedRank], pages: Path | None, attempt: int) -> None:
        self._ranks = list(ranks)
        self._pages = pages
        self._attempt = attempt
        self._found: dict[int, Path] = {rank.rank: rank.page for rank in ranks if rank.page is not None}
        self._gpus: tuple[Gpu, ...] | str = ()

    def take(self) -> list[RankGlance]:
        if not isinstance(self._gpus, str):
            self._gpus = read_gpus()  # a text says why there are none, and there will be none later
        gpus = () if isinstance(self._gpus, str) else self._gpus
        return [self._look(rank, gpus) for rank in self._ranks]

    def _look(self, rank: WatchedRank, gpus: Sequence[Gpu]) -> RankGlance:
        now, progress = time.time(), self._progress(rank)
        try:
            pulse = procfs.pulse(rank.pid)
        except (ProcessLookupError, OSError):
            return RankGlance(rank.rank, rank.pid, now, alive=False, progress=progress)
        return RankGlance(
            rank=rank.rank,
            pid=rank.pid,
            at=now,
            alive=pulse.state != "Z",
            state=pulse.state,
            memory_bytes=pulse.rss_bytes,
            cpu_s=pulse.cpu_s,
            progress=progress,
            gpus=tuple(gpu for gpu in gpus if rank.pid in gpu.pids),
        )

    def _progress(self, rank: WatchedRank) -> Progress | None:
        page = self._found.get(rank.rank) or find_page(self._pages, self._attempt, rank.pid)
        if page is None:
            return None
        self._found[rank.rank] = page
        try:
            return read_page(page, newest_calls=_NEWEST_CALLS).progress
        except EvidenceError:
            return None  # it goes away with the job
