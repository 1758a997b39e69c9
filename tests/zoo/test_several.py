"""Many cases at a time: few that start, more that wait, and some alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import wait_until

ZOO = Path(__file__).resolve().parents[2] / "zoo"
sys.path.insert(0, str(ZOO))

import several  # noqa: E402


class Cases:
    """Stand-ins for cases: each says that it has begun, and goes on when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, alone: tuple[str, ...] = ()) -> None:
        self.begun: Queue[str] = Queue()
        self.faults = {name: threading.Event() for name in "abcdefgh"}
        self.ends = {name: threading.Event() for name in "abcdefgh"}
        self.running: set[str] = set()
        self.starting: set[str] = set()
        self.beside: dict[str, tuple[int, int]] = {}
        """Case → how many were starting and running when it began, itself among them."""
        self._lock = threading.Lock()
        monkeypatch.setattr(several, "run_and_judge", self._run)
        monkeypatch.setattr(
            several, "load_case", lambda name, _: SimpleNamespace(expect=SimpleNamespace(alone=name in alone))
        )

    def _run(self, name: str, *_: object, on_fault: Callable[[], None] = lambda: None, **__: Any) -> str:
        with self._lock:
            self.running.add(name)
            self.starting.add(name)
            self.beside[name] = len(self.starting), len(self.running)
        self.begun.put(name)
        assert self.faults[name].wait(30)
        with self._lock:
            self.starting.remove(name)
        on_fault()
        on_fault()
        assert self.ends[name].wait(30)
        with self._lock:
            self.running.remove(name)
        return name


def test_a_case_that_waits_makes_room_for_one_that_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cases = Cases(monkeypatch)
    with several.run_several("abcdefgh", tmp_path) as runs:
        for _ in range(several.AT_ONCE):
            cases.faults[cases.begun.get(timeout=30)].set()
        assert len(cases.running) == several.AT_ONCE
        for event in (*cases.faults.values(), *cases.ends.values()):
            event.set()
        assert [str(runs[name].result(30)) for name in "abcdefgh"] == list("abcdefgh")
    assert max(starting for starting, _ in cases.beside.values()) <= several.STARTING
    assert max(running for _, running in cases.beside.values()) == several.AT_ONCE


def test_a_case_that_runs_alone_has_nothing_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cases = Cases(monkeypatch, alone=("c", "e"))
    for event in (*cases.faults.values(), *cases.ends.values()):
        event.set()
    with several.run_several("abcdefgh", tmp_path) as runs:
        assert [str(runs[name].result(30)) for name in "abcdefgh"] == list("abcdefgh")
    assert cases.beside["c"] == cases.beside["e"] == (1, 1)
    assert [cases.begun.get_nowait(), cases.begun.get_nowait()] == ["c", "e"]


def test_what_has_not_begun_when_nobody_wants_it_any_more_never_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cases = Cases(monkeypatch)

    def finish_what_has_begun() -> None:
        assert wait_until(runs["h"].cancelled, 30)
        for event in (*cases.faults.values(), *cases.ends.values()):
            event.set()

    finishing = threading.Thread(target=finish_what_has_begun)
    with several.run_several("abcdefgh", tmp_path) as runs:
        cases.begun.get(timeout=30)
        finishing.start()
    finishing.join()
    assert len(cases.beside) <= several.AT_ONCE
