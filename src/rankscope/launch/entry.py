"""The first moments of `rankscope run`, while the process is still small: it stays as the job's guard."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from rankscope.errors import MissingTorch, RankscopeError
from rankscope.launch.guard import run_guarded


def run(arguments: list[str]) -> int:
    """The verb. Everything heavy is imported in the guarded child only."""
    if importlib.util.find_spec("torch") is None:
        raise MissingTorch("run")
    return run_prepared(lambda: arguments)


def run_prepared(arguments: Callable[[], list[str]]) -> int:
    """As `run`, for a verb that has work to do first: `arguments()` does it, under the guard, and gives the command."""
    pages = shared_folder()
    return run_guarded(lambda: _launch(arguments, pages), lambda: _remove(pages))


def _launch(arguments: Callable[[], list[str]], pages: str) -> int:
    """Below the guard there is nobody else to turn an error into a line."""
    from rankscope.launch.command import launch
    from rankscope.report import live

    try:
        return launch(arguments(), pages)
    except RankscopeError as error:
        live.say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        live.say("interrupted before the ranks had started")
        return 130


def shared_folder() -> str:
    """A path for the ranks' pages and sockets, not made yet: memory where there is any, so that a slow disk never slows
    a rank, and short, because sockets want short paths."""
    for base in ("/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp"):
        if os.access(base, os.W_OK | os.X_OK):
            return f"{base}/rankscope-{os.getuid()}-{os.urandom(6).hex()}"
    raise RankscopeError("neither /dev/shm nor /tmp can be written: the ranks' pages have no place")


def _remove(folder: str) -> None:
    """Flat, and ours alone."""
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        return  # never made, or removed already
