"""The first moments of `rankscope run`, while the process is still small: it stays as the job's guard."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rankscope.errors import MissingTorch, RankscopeError
from rankscope.launch.guard import run_guarded
from rankscope.launch.page_folder import make_page_folder, remove_page_folder, sweep
from rankscope.mask import mask_text
from rankscope.terminal_text import harmless

TOO_EARLY = "interrupted before the ranks had started"


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
        _leave_at_once_on_ctrl_c()
        from rankscope.launch.watched.command import watch as watch_command

        return watch_command(arguments, pages)

    return _told(main)


def _launch(arguments: Callable[[], list[str]], pages: str) -> int:
    def main() -> int:
        words = arguments()
        _leave_at_once_on_ctrl_c()
        from rankscope.launch.command import launch

        return launch(words, pages)

    return _told(main)


def _leave_at_once_on_ctrl_c() -> None:
    """An import that is interrupted may swallow that, or end the process in C++. Nothing is lost by leaving at once:
    the guard sees to what there is. As soon as ranks run, torch's agent and ours take the signal over."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


def _told(main: Callable[[], int]) -> int:
    """Below the guard there is nobody else to turn an error into a line."""
    try:
        return main()
    except RankscopeError as error:
        _say(mask_text(str(error)))
        return error.exit_code
    except KeyboardInterrupt:
        _say(TOO_EARLY)
        return 130


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    _say(TOO_EARLY)
    os._exit(128 + number)


def _say(text: str) -> None:
    """Without the modules that words are made of: they may be what was being imported."""
    try:
        os.write(2, harmless(f"rankscope: {text}\n").encode(errors="replace"))
    except OSError:
        return  # nobody reads the terminal any more; the exit code still tells
