"""The first moments of `rankscope run`, while the process is still small: it stays as the job's guard."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from rankscope.errors import MissingTorch, RankscopeError
from rankscope.launch.guard import run_guarded
from rankscope.launch.page_folder import make_page_folder, remove_page_folder, sweep


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
    from rankscope.launch.watched.command import watch as watch_command

    return _told(lambda: watch_command(arguments, pages))


def _launch(arguments: Callable[[], list[str]], pages: str) -> int:
    from rankscope.launch.command import launch

    return _told(lambda: launch(arguments(), pages))


def _told(main: Callable[[], int]) -> int:
    """Below the guard there is nobody else to turn an error into a line."""
    from rankscope.report import live

    try:
        return main()
    except RankscopeError as error:
        live.say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        live.say("interrupted before the ranks had started")
        return 130
