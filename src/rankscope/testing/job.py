"""Tests as a job: `rankscope run` with a pytest in each rank."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from rankscope.testing.mark import Wanted
from rankscope.testing.merged import RankReport, Result, merge
from rankscope.testing.rank import TEST_BEGINS

_STOPPING_S = 20.0
"""What `run` may take to look at the ranks and to end them."""
_LOOK_S = 0.02
_LAST_WORDS_S = 0.5
_NOT_FOR_RANKS = frozenset(
    [
        "capture",
        "plugins",
        "usepdb",
        "usepdb_cls",
        "trace",
        "numprocesses",
        "maxprocesses",
        "dist",
        "tx",
        "px",
        "rsyncdir",
        "keyword",
        "markexpr",
        "deselect",
        "file_or_dir",
        "lf",
        "failedfirst",
        "newfirst",
        "cacheclear",
        "cacheshow",
        "stepwise",
        "stepwise_skip",
        "stepwise_reset",
        "maxfail",
        "reruns",
        "xmlpath",
        "junitprefix",
        "htmlpath",
        "inifilename",
        "rootdir",
        "confcutdir",
        "basetemp",
        "override_ini",
        "collectonly",
        "setuponly",
        "setupplan",
        "setupshow",
        "debug",
        "help",
        "version",
        "verbose",
        "no_header",
        "no_summary",
        "reportchars",
        "durations",
        "durations_min",
        "timeout",
        "log_file",
        "pastebin",
        "looponfail",
        "looponfailing",
        "showfixtures",
        "show_fixtures_per_test",
        "markers",
        "doctestmodules",
    ]
)
"""How tests are chosen, run and told of is decided where the user's pytest runs."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders of one job."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def result(self, rank: int, number: int) -> Path:
        return self.results / f"{rank}-{number}.json"


class RankJob:
    """Ranks that run one test, or some of them one after another."""

    def __init__(self, items: Sequence[pytest.Item], wanted: Wanted) -> None:
        self._numbers = {item.nodeid: number for number, item in enumerate(items)}
        self._wanted = wanted
        self._config = items[0].config
        self._debugging = bool(self._config.getoption("usepdb", False))
        self._keep = False
        self._place = _Place(Path(tempfile.mkdtemp(prefix="rankscope-test-")))
        self._place.results.mkdir()
        with self._terminal_free():
            self._place.spec.write_text(json.dumps(_spec(items, wanted, self._place)), encoding="utf-8")
        self._process = _start(self._place, wanted, self._debugging)

    def answers(self, item: pytest.Item) -> bool:
        """Whether its ranks run this test, or have: not those that come after one that ended them."""
        number = self._numbers.get(item.nodeid)
        if number is None:
            return False
        return self._process.poll() is None or number <= self._passed()

    def result(self, item: pytest.Item) -> Result:
        """Waits for it; what all ranks left of it, as one result."""
        number = self._numbers[item.nodeid]
        with self._terminal_free():
            in_time = self._wait(number)
        goes_on = self._goes_on(number)
        reports = self._reports(number, goes_on)
        if goes_on:
            result = merge(reports, None, None)
        else:
            result = merge(reports, self._place.run, None if in_time else self._wanted.timeout_s)
        self._keep = self._keep or result.outcome == "failed"
        return result

    def close(self) -> None:
        """Ends what still runs; the folder stays where something failed."""
        self._end()
        if not self._keep:
            shutil.rmtree(self._place.root, ignore_errors=True)

    def _terminal_free(self) -> AbstractContextManager[None]:
        return _terminal_let_go(self._config) if self._debugging else nullcontext()

    def _wait(self, number: int) -> bool:
        """Until the test is over, and the ranks too unless they go on to the next. False: it took too long."""
        deadline = None if self._debugging else time.monotonic() + self._wanted.timeout_s
        try:
            while self._process.poll() is None and not self._goes_on(number):
                if deadline is not None and time.monotonic() > deadline:
                    self._end()
                    return False
                time.sleep(_LOOK_S)
        except BaseException:
            self._end()  # Ctrl-C in the user's pytest
            raise
        return True

    def _goes_on(self, number: int) -> bool:
        """All ranks are through with it, none failed, and another test comes."""
        return number + 1 < len(self._numbers) and self._is_passed(number)

    def _is_passed(self, number: int) -> bool:
        return all(
            phases and all(phase["outcome"] != "failed" for phase in phases)
            for phases in (self._phases(rank, number) for rank in range(self._wanted.ranks))
        )

    def _passed(self) -> int:
        """How many tests all ranks have come through."""
        return sum(1 for _ in takewhile(self._is_passed, range(len(self._numbers))))

    def _end(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOPPING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _phases(self, rank: int, number: int) -> list[dict[str, Any]] | None:
        try:
            found: list[dict[str, Any]] = json.loads(self._place.result(rank, number).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # it is not over, hung, died, or was stopped
        return found

    def _reports(self, number: int, goes_on: bool) -> list[RankReport]:
        found = []
        for rank in range(self._wanted.ranks):
            logs = self._place.run / f"logs/attempt_0/{rank}"
            out, err = (_said_during(logs / f"{stream}.log", number, goes_on) for stream in ("stdout", "stderr"))
            found.append(RankReport(rank, self._phases(rank, number), out, err))
        return found


def _start(place: _Place, wanted: Wanted, debugging: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", str(wanted.ranks)]
    command += ["--run-dir", str(place.run), "--stages", "off", "--monitor-interval", "0.1"]
    # Whoever debugs a rank keeps the others waiting, and means it.
    command += ["--on-hang", "report"] if debugging else ["--on-hang", "stop", "--stall-after", str(wanted.stall_s)]
    command += ["-m", "rankscope.testing.rank", str(place.spec)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (place.root / "said").open("wb") as said:
        return subprocess.Popen(
            command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )


def _spec(items: Sequence[pytest.Item], wanted: Wanted, place: _Place) -> dict[str, Any]:
    config = items[0].config
    arguments = [f"{item.path}::{item.nodeid.partition('::')[2]}" for item in items]
    arguments += ["--maxfail=1", "--rootdir", str(config.rootpath)]
    arguments += ["-c", str(config.inipath)] if config.inipath is not None else []
    arguments += ["-o", "addopts=", "-p", "no:terminal", "-p", "no:cacheprovider", "--capture=no"]
    for plugin in config.getoption("plugins", []):
        if not plugin.startswith("no:"):
            arguments += ["-p", plugin]
    return {
        "arguments": arguments,
        "backend": wanted.backend,
        "folder": str(config.invocation_params.dir),
        "options": _options(config),
        "path": [entry for entry in sys.path if entry],
        "results": str(place.results),
        "reuse": wanted.reuse,
        "tests": {item.nodeid: number for number, item in enumerate(items)},
        "terminal": _terminal() if config.getoption("usepdb", False) else "",
    }


def _options(config: pytest.Config) -> dict[str, Any]:
    """The user's own, of conftest.py and of plugins: what a test may ask for."""
    found = {}
    for name, value in vars(config.option).items():
        if name in _NOT_FOR_RANKS or not isinstance(value, str | int | float | bool | list | None):
            continue
        try:
            found[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            continue  # nothing that could be handed over
    return found


@contextmanager
def _terminal_let_go(config: pytest.Config) -> Iterator[None]:
    """Pytest holds the terminal while a test runs; the debugger of a rank needs it."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield
        return
    capture.suspend(in_=True)
    try:
        yield
    finally:
        capture.resume()


def _terminal() -> str:
    try:
        return os.ttyname(0)
    except OSError:
        return ""  # there is none: nobody could answer a debugger


def _said_during(path: Path, number: int, goes_on: bool) -> str:
    """What a rank wrote while the test of this number ran; of one that goes on, what is still on its way too."""
    begin, after = (TEST_BEGINS.format(number=each) for each in (number, number + 1))
    deadline = time.monotonic() + _LAST_WORDS_S
    while True:
        text = _text(path)
        if begin not in text:
            return text if number == 0 else ""  # ranks that run one test only write no marks
        said = text.partition(begin)[2]
        if after in said or not goes_on or time.monotonic() > deadline:
            return said.partition(after)[0]
        time.sleep(_LOOK_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
