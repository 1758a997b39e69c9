"""The first moments of `rankscope run`, while the process is still small: it stays as the job's guard."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from rankscope.errors import MissingTorch, RankscopeError
from rankscope.launch.guard import run_guarded
from rankscope.launch.page_folder import make_page_folder, remove_page_folder, sweep
from rankscope.mask import mask_text


def run(arguments: list[str]) -> int:
    """The verb. Everything heavy is imported in the guarded child only."""
    if importlib.util.find_spec("torch") is None:
        raise MissingTorch("run")
    return run_prepared(lambda: arguments)


def run_prepared(arguments: Callable[[], list[str]]) -> int:
    """As `run`, for a verb that has work to do first: `arguments()` does it, under the guard, and gives the command."""
    sweep()
    pages = make_page_folder()
    return run_guarded(lambda: _launch(arguments, pages.path), lambda: remove_page_folder(pages.path))


def watch(arguments: list[str]) -> int:
    """The verb, for any command."""
    sweep()
    pages = make_page_folder()
    return run_guarded(lambda: _watch(arguments, pages.path), lambda: remove_page_folder(pages.path))


def _watch(arguments: list[str], pages: str) -> int:
    def main() -> int:
        from rankscope.launch.watched.command import watch as watch_command

        return watch_command(arguments, pages)

    return _told(main)


def _launch(arguments: Callable[[], list[str]], pages: str) -> int:
    def main() -> int:
        from rankscope.launch.command import launch

        return launch(arguments(), pages)

    return _told(main)


def _told(main: Callable[[], int]) -> int:
    """Below the guard there is nobody else to turn an error into a line."""
    try:
        return main()
    except RankscopeError as error:
        _say(mask_text(str(error)))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted before the ranks had started")
        return 130


def _say(text: str) -> None:
    """Without the modules that words are made of: they may be what was being imported."""
    try:
        os.write(2, f"rankscope: {text}\n".encode(errors="replace"))
    except OSError:
        return  # nobody reads the terminal any more; the exit code still tells
