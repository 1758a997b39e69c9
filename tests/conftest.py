"""Real runs of the command, watched from outside: each has a time limit and a mark that finds all its processes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from in_tmux import tmux  # noqa: F401  a fixture for all

if importlib.util.find_spec("hypothesis") is not None:  # a machine with a GPU may have little else
    import searching  # noqa: F401  loads the profile that all properties are searched with

MARK = "RANKSCOPE_TEST_MARK"
MOST_SECOND_LOOKS = 5
_FINAL = "rankscope/final"
COMMAND = (sys.executable, "-m", "rankscope")
os.environ["RANKSCOPE_LANG"] = "en"  # whatever the locale of whoever runs the tests
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands under test would ignore it, too


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-look", action="store_true", help="only tests that failed before and may be repeated")
    parser.addoption("--whole-zoo", action="store_true", help="run every case of the zoo, not one of each cause")
    parser.addoption("--turn", choices=("beside", "alone"), help="without the tests marked alone, or only those")


def pytest_configure(config: pytest.Config) -> None:
    """What must be right the first time is noted from the first turn to the last."""
    begins = not config.getoption("--second-look") and config.getoption("--turn") != "alone"
    cache: pytest.Cache | None = getattr(config, "cache", None)  # without, where its plugin is turned off
    if cache is None or hasattr(config, "workerinput"):
        return
    if begins:
        cache.set(_FINAL, [])
    config.pluginmanager.register(Finals(cache))


def never_look_again(request: pytest.FixtureRequest) -> None:
    """The test that asks fails for good: no second look at anything."""
    request.node.user_properties.append((_FINAL, True))


class Finals:
    """Notes them where all reports arrive: tests may run in processes of their own."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and any(name == _FINAL for name, _ in report.user_properties):
            self._cache.set(_FINAL, [*self._cache.get(_FINAL, []), report.nodeid])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if turn := config.getoption("--turn"):
        keep_turn(config, items, turn)
    if not config.getoption("--second-look"):
        return
    final = config.cache.get(_FINAL, []) if config.cache is not None else []
    if final:
        pytest.exit(f"no second look: {', '.join(final)} must be right the first time", returncode=1)
    if len(items) > MOST_SECOND_LOOKS:
        pytest.exit(f"no second look: {len(items)} tests failed, more than {MOST_SECOND_LOOKS}", returncode=1)


def keep_turn(config: pytest.Config, items: list[pytest.Item], turn: str) -> None:
    """Whole jobs first: the many short tests behind them keep all processes busy to the end."""
    by_turn: dict[str, list[pytest.Item]] = {"beside": [], "alone": []}
    for item in items:
        by_turn["beside" if item.get_closest_marker("alone") is None else "alone"].append(item)
    items[:] = sorted(by_turn.pop(turn), key=lambda item: item.get_closest_marker("slow") is None)
    for left in by_turn.values():
        config.hook.pytest_deselected(items=left)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended, and everything it said."""

    code: int
    """As a shell tells it: 128+N for a signal."""
    out: bytes
    err: bytes
    run_dir: Path

    @property
    def verdict(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run_dir / "verdict.json").read_bytes())
        return content

    def log(self, local_rank: int, stream: str, attempt: int = 0) -> bytes:
        return (self.run_dir / f"logs/attempt_{attempt}/{local_rank}/{stream}.log").read_bytes()

    def lines(self) -> list[str]:
        """Both streams, as shown on the console."""
        return (self.out + self.err).decode(errors="replace").splitlines()


class Started:
    """A command that may still run. Everything it started is ended with the test."""

    def __init__(
        self, command: list[str], folder: Path, env: Mapping[str, str], cwd: Path, stdin: bytes | None = None
    ) -> None:
        self.run_dir = folder / "run"
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / "stdout", folder / "stderr"
        given = folder / "stdin"
        given.write_bytes(stdin or b"")
        with given.open("rb") as stdin_file, self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env, MARK: self.mark},
                stdin=stdin_file,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> bytes:
        return self._err.read_bytes()

    def shows(self, *texts: str, timeout_s: float = 60.0) -> None:
        """Waits until every text stands on the console."""
        wait_until(
            lambda: all(text.encode() in self.out + self.err for text in texts) or self.process.poll() is not None,
            timeout_s,
        )
        missing = [text for text in texts if text.encode() not in self.out + self.err]
        assert not missing, f"{missing} never came\n{(self.out + self.err).decode(errors='replace')}"

    def ranks(self) -> dict[int, int]:
        """Rank → pid."""
        wait_until((self.run_dir / "ranks.json").exists, 30.0)
        return {int(rank): pid for rank, pid in json.loads((self.run_dir / "ranks.json").read_text()).items()}

    def alive(self) -> dict[int, str]:
        """Every process of this run → its command line."""
        return marked(self.mark)

    def wait(self, timeout_s: float = 90.0, *, gone_within_s: float = 5.0) -> Ended:
        """Waits for the end; a command that leaves a process behind fails the test."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            shown = (self.out + self.err).decode(errors="replace")
            raise AssertionError(f"still running after {timeout_s:g} s; it had shown:\n{shown}") from None
        assert wait_until(lambda: not self.alive(), gone_within_s), f"left behind: {self.alive()}"
        return Ended(code if code >= 0 else 128 - code, self.out, self.err, self.run_dir)

    def end(self) -> None:
        """Whatever is left of it ends now."""
        for pid in self.alive():
            kill(pid, signal.SIGKILL)
        self.process.wait()
        for pid in self.alive():
            kill(pid, signal.SIGKILL)


class Rankscope:
    """Starts commands in a folder of their own each; several threads may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options: tuple[str, ...] = ("--no-merge",)
        """Of every `run`: most tests count what each rank prints."""
        self._numbers = itertools.count()
        self._started: list[Started] = []

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def command(self, *command: object, env: Mapping[str, str] | None = None) -> Started:
        """Starts any command line."""
        return self._start(self._new_folder(), command, env, None)

    def given(self, *command: object, env: Mapping[str, str] | None = None, stdin: bytes | None = None) -> Started:
        """The same, with something to read."""
        return self._start(self._new_folder(), command, env, stdin)

    def start(
        self,
        *arguments: object,
        nproc: int = 2,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Started:
        """`rankscope run`, with a folder for the run."""
        own = self._new_folder()
        options = ("--nproc-per-node", nproc, "--run-dir", own / "run", *self.options)
        return self._start(own, (*COMMAND, "run", *options, *arguments), env, stdin)

    def _new_folder(self) -> Path:
        own = self.folder / f"command{next(self._numbers)}"
        own.mkdir()
        return own

    def _start(
        self, own: Path, command: tuple[object, ...], env: Mapping[str, str] | None, stdin: bytes | None
    ) -> Started:
        started = Started([str(word) for word in command], own, env or {}, self.folder, stdin)
        self._started.append(started)
        return started

    def run(
        self,
        *arguments: object,
        nproc: int = 2,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float = 90.0,
    ) -> Ended:
        return self.start(*arguments, nproc=nproc, env=env, stdin=stdin).wait(timeout_s)

    def end(self) -> None:
        for started in self._started:
            started.end()


@pytest.fixture
def rankscope(tmp_path: Path) -> Iterator[Rankscope]:
    launcher = Rankscope(tmp_path)
    yield launcher
    launcher.end()


def marked(mark: str) -> dict[int, str]:
    """Living processes that carry the mark in their environment → their command lines."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended meanwhile, or is another user's.
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # It has ended by itself.
