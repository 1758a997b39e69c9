"""What a program may say of itself: stages by name, its own step number, marks of memory.

Under `rankscope run` it is written to the rank's page and shown with the stages found without it; anywhere else it does
nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from rankscope.probe import bootstrap
from rankscope.probe.stages import OpenStage

F = TypeVar("F", bound=Callable[..., Any])

_books = bootstrap.BOOKS
"""Empty where no launcher listens."""


class stage:
    """A stage of the program, by name.

    `rankscope.stage("Model created")` marks it as passed. `with rankscope.stage("evaluation"):` and
    `@rankscope.stage("evaluation")` tell when it begins and when it ends.
    """

    __slots__ = ("_frame", "_name", "_open")

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: OpenStage | None = None
        self._frame: FrameType | None = sys._getframe(1) if _books else None
        """Where it was made; None once it is more than a mark."""

    def __enter__(self) -> stage:
        if _books:
            name = self._name
            self._frame = None
            self._open = _books[0].begin(name, name, "", sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open is not None:
            _books[0].end(self._open, failed=kind is not None)
            self._open = None

    def __call__(self, function: F) -> F:
        self._frame = None
        if not _books:
            return function
        name = self._name

        @functools.wraps(function)
        def within_stage(*args: Any, **kwargs: Any) -> Any:
            with stage(name):
                return function(*args, **kwargs)

        return within_stage  # type: ignore[return-value]

    def __del__(self) -> None:
        # Neither entered nor used as a decorator: a statement of its own, gone as soon as it is made.
        frame = getattr(self, "_frame", None)
        if frame is not None:
            _books[0].mark(self._name, "", frame)


def step(number: int) -> None:
    """The program's own step number, for loops whose steps are not those of an optimizer."""
    if _books:
        _books[0].declare_step(number)


def log_memory(name: str) -> None:
    """A mark of memory, shown as `MEM:POST-MODEL host 1.20 GB; GPU 3.40 GB`."""
    if _books:
        _books[0].mark(f"MEM:{name}", "memory", sys._getframe(1), always=True)
