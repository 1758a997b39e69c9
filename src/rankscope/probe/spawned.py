"""Processes that multiprocessing or torch's spawn start: they have a number before they join a group, and whoever runs
their function catches what it raises, prints it and exits with 1. No frame of ours comes into what is printed."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from rankscope.probe import raised
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import Page


def watch(page: Page, imports: ImportWatch) -> None:
    imports.when_imported("torch.multiprocessing.spawn", lambda module: _torch(module, page))
    imports.when_imported("multiprocessing.util", lambda module: _multiprocessing(module, page))


def _torch(module: ModuleType, page: Page) -> None:
    run = module._wrap

    @functools.wraps(run)
    def _wrap(fn: Any, i: Any, *rest: Any) -> Any:
        if page.rank < 0 and isinstance(i, int):
            page.declare(i, 0)
        try:
            return run(fn, i, *rest)
        except SystemExit as leaving:
            _note(page, leaving.__context__)  # what the function raised, and torch wrote down for the parent
            raise

    module._wrap = _wrap  # type: ignore[attr-defined]


def _multiprocessing(module: ModuleType, page: Page) -> None:
    """The last that is called while the exception is still on its way."""
    leave = module._exit_function

    @functools.wraps(leave)
    def _exit_function(*args: Any, **kwargs: Any) -> Any:
        _note(page, sys.exc_info()[1])
        return leave(*args, **kwargs)

    module._exit_function = _exit_function  # type: ignore[attr-defined]


def _note(page: Page, error: BaseException | None) -> None:
    if not isinstance(error, Exception):
        return
    try:
        raised.write(page, error)
    except Exception as fault:  # noqa: BLE001  noted on the page and shown in the report
        page.error(f"noting an exception failed: {type(fault).__name__}: {fault}")
