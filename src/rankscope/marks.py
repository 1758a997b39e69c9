"""What a program may say of itself: stages by name, its own step number, marks of memory.

Under `rankscope run` it is written to the rank's page and shown with the stages found without it; anywhere else it does
nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rankscope.probe import bootstrap
from rankscope.probe.shortcuts import quick
from rankscope.probe.stages import OpenStage

_frame_of = sys._getframe
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="PlainStage")

_books = bootstrap.BOOKS
"""Empty where no launcher listens."""


class PlainStage:
    """What a stage does but for its use as a decorator. Where there are shortcuts, theirs stands for it."""

    __slots__ = ("_name", "_state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: FrameType | OpenStage | None = _frame_of(1) if _books else None
        """Where it was made, until it is more than a mark; then the stage that is open, if one is."""

    def __enter__(self: S) -> S:
        if _books:
            self._state = _begin(self._name, _frame_of(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        state = self._state
        if type(state) is tuple:
            self._state = None
            _end(state, kind is not None)

    def __del__(self) -> None:
        # Neither entered nor used as a decorator: a statement of its own, gone as soon as it is made.
        try:
            state = self._state
        except AttributeError:
            return  # made without a name
        if type(state) is FrameType:
            _mark(self._name, state)


def _begin(name: str, frame: FrameType) -> OpenStage | None:
    return _books[0].begin(name, name, "", frame)


def _end(stage: OpenStage, failed: bool) -> None:
    _books[0].end(stage, failed)


def _mark(name: str, frame: FrameType) -> None:
    _books[0].mark(name, "", frame)


def _declare_step(number: int) -> None:
    if _books:
        _books[0].declare_step(number)


_declare: Callable[[int], None] = _declare_step
if quick is not None:
    quick.serve(_books, _begin, _end, _mark, _declare_step)
    _declare = quick.declare_step
if TYPE_CHECKING:
    _Base = PlainStage
else:
    _Base = PlainStage if quick is None else quick.Stage


class stage(_Base):
    """A stage of the program, by name.

    `rankscope.stage("Model created")` marks it as passed. `with rankscope.stage("evaluation"):` and
    `@rankscope.stage("evaluation")` tell when it begins and when it ends.
    """

    __slots__ = ()

    def __call__(self, function: F) -> F:
        self._state = None
        if not _books:
            return function
        name = self._name

        @functools.wraps(function)
        def within_stage(*args: Any, **kwargs: Any) -> Any:
            with stage(name):
                return function(*args, **kwargs)

        return within_stage  # type: ignore[return-value]


def step(number: int) -> None:
    """The program's own step number, for loops whose steps are not those of an optimizer."""
    if _books:
        _declare(number)


def log_memory(name: str) -> None:
    """A mark of memory, shown as `MEM:POST-MODEL host 1.20 GB; GPU 3.40 GB`."""
    if _books:
        _books[0].mark(f"MEM:{name}", "memory", sys._getframe(1), always=True)
