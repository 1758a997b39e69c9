"""The board of a run of ours: on its terminal, in place of the ranks' output."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import BinaryIO

from rankscope.errors import UsageError
from rankscope.evidence.glance import Glances, RankGlance, WatchedRank
from rankscope.launch.job import Job, RankProcess
from rankscope.private_files import open_private_log
from rankscope.report.board import Board
from rankscope.report.plain_text import plain, short_path
from rankscope.report.screen import Screen
from rankscope.report.words.languages import language

OUTPUT_NAME = "output.log"
"""What would have been shown: the ranks' lines with their prefixes."""
_PERIOD_S = 0.5


class JobGlances:
    """Quick looks at the ranks of a run, through its restarts. For one thread at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._of: list[RankProcess] | None = None
        self._glances: Glances | None = None

    def take(self) -> tuple[RankGlance, ...]:
        """Nothing as long as there are no ranks."""
        ranks = self._job.ranks
        if self._of is not ranks or self._glances is None:
            watched = [WatchedRank(process.rank, process.pid, process.page) for process in ranks]
            self._of, self._glances = ranks, Glances(watched, self._job.pages, self._job.attempt)
        return tuple(self._glances.take()) if ranks else ()


class BoardInPlace:
    """Draws the board twice a second, in a thread of its own."""

    def __init__(self, job: Job, screen: Screen, program: str) -> None:
        self._job = job
        self._screen = screen
        self._board = Board(program_name(program), job.lang)
        self._glances = JobGlances(job)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-board", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PERIOD_S)
        self._screen.keep("status", ())

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            try:
                seen = self._glances.take()
                if seen:
                    self._screen.keep("status", self._lines(seen))
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the board; it is told at the end
                self._job.note_problem(f"the board failed: {type(error).__name__}: {error}")

    def _lines(self, seen: tuple[RankGlance, ...]) -> list[str]:
        lines = self._board.lines(seen, time.time())
        _, rows = self._screen.size
        path = short_path(str(self._job.folder / OUTPUT_NAME))
        where = language(self._job.lang).label("output: {path}", path=path)
        return [*lines[: max(1, rows - 4)], "", where]


def open_output(folder: Path) -> BinaryIO:
    """Raises UsageError where it cannot be written."""
    path = folder / OUTPUT_NAME
    try:
        return open(open_private_log(path), "ab", buffering=0)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from error


def program_name(program: str) -> str:
    return plain(Path(program).name[:60])
