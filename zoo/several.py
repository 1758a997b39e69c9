"""Runs many cases in little time: a case starts, which keeps the processors busy, and from then on mostly waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from execution import RANKSCOPE
from expectation import CASES, load_case
from run import Result, run_and_judge

STARTING = 2
"""Cases that start at the same time. Beyond its fault a case mostly waits, and the next may start beside it."""
AT_ONCE = 4
PATIENCE = 2.0
"""Times a case's own limit, which is meant for a machine with nothing else to do."""

Runs = dict[str, Future[Result]]


@contextmanager
def run_several(
    names: Sequence[str],
    folder: Path,
    root: Path = CASES,
    *,
    command: Sequence[str] = RANKSCOPE,
    ranks: int | None = None,
    at_once: int | None = None,
) -> Iterator[Runs]:
    """The cases' results, as they come; the files of a case go to `folder` under its name.

    Cases that run alone come first, one after the other. What has not begun when the block is left never does.
    """
    alone = [name for name in names if load_case(name, root).expect.alone]
    turns = threading.Semaphore(at_once or STARTING)
    runs: Runs = {}

    def beside_others(name: str) -> Result:
        wait([runs[first] for first in alone])
        with Turn(turns) as turn:
            return run_and_judge(
                name, folder / name, root, command=command, ranks=ranks, patience=PATIENCE, on_fault=turn.give_back
            )

    with ThreadPoolExecutor(1) as single, ThreadPoolExecutor(at_once or AT_ONCE) as pool:
        runs |= {
            name: single.submit(run_and_judge, name, folder / name, root, command=command, ranks=ranks)
            for name in alone
        }
        runs |= {name: pool.submit(beside_others, name) for name in names if name not in alone}
        try:
            yield runs
        finally:
            for run in runs.values():
                run.cancel()


class Turn:
    """One of the places for cases that start; given back at the fault, or at the end where no fault comes."""

    def __init__(self, turns: threading.Semaphore) -> None:
        self._turns = turns
        self._lock = threading.Lock()
        self._held = False

    def __enter__(self) -> Turn:
        self._turns.acquire()
        self._held = True
        return self

    def give_back(self) -> None:
        """From any thread, any number of times."""
        with self._lock:
            if self._held:
                self._held = False
                self._turns.release()

    def __exit__(self, *_: object) -> None:
        self.give_back()
