"""One test as a job: `rankscope run` with a pytest in each rank."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankscope.testing.mark import Wanted
from rankscope.testing.merged import RankReport, Result, merge

_STOPPING_S = 20.0
"""What `run` may take to look at the ranks and to end them."""
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
    """Folders of one test."""

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


def run(item: pytest.Item, wanted: Wanted) -> Result:
    """Starts the ranks and waits for them; what they left, as one result."""
    place = _Place(Path(tempfile.mkdtemp(prefix="rankscope-test-")))
    place.results.mkdir()
    debugging = bool(item.config.getoption("usepdb", False))
    with _terminal_let_go(item.config) if debugging else nullcontext():
        place.spec.write_text(json.dumps(_spec(item, wanted, place)), encoding="utf-8")
        timed_out = _start(place, wanted, debugging)
    result = merge(_rank_reports(place, wanted.ranks), place.run, wanted.timeout_s if timed_out else None)
    if result.outcome != "failed":
        shutil.rmtree(place.root, ignore_errors=True)
    return result


def _start(place: _Place, wanted: Wanted, debugging: bool) -> bool:
    """Whether it ran out of time."""
    command = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", str(wanted.ranks)]
    command += ["--run-dir", str(place.run), "--stages", "off", "--monitor-interval", "0.1"]
    # Whoever debugs a rank keeps the others waiting, and means it.
    command += ["--on-hang", "report"] if debugging else ["--on-hang", "stop", "--stall-after", str(wanted.stall_s)]
    command += ["-m", "rankscope.testing.rank", str(place.spec)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (place.root / "said").open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            process.wait(None if debugging else wanted.timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return True
        except BaseException:
            process.send_signal(signal.SIGTERM)  # Ctrl-C in the user's pytest
            process.wait()
            raise
    return False


def _spec(item: pytest.Item, wanted: Wanted, place: _Place) -> dict[str, Any]:
    config = item.config
    arguments = [f"{item.path}::{item.nodeid.partition('::')[2]}", "--rootdir", str(config.rootpath)]
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


def _rank_reports(place: _Place, ranks: int) -> list[RankReport]:
    found = []
    for rank in range(ranks):
        path = place.results / f"{rank}.json"
        try:
            phases = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            phases = None  # it hung, died, or was stopped
        logs = place.run / f"logs/attempt_0/{rank}"
        found.append(RankReport(rank, phases, _text(logs / "stdout.log"), _text(logs / "stderr.log")))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
