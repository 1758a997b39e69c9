"""An exception with all that led to it, as it is written onto the page."""

from __future__ import annotations

import builtins

from rankscope.probe.page import EXCEPTION, Earlier, Page
from rankscope.probe.sites import absolute, traceback_frames

_MOST = 8
"""Exceptions of one chain that are kept: the first ones, and the last."""
_KEPT_OF_THE_LAST = 3
_FRAMES_OF_EARLIER = 24
_GROUP: type[BaseException] | None = getattr(builtins, "BaseExceptionGroup", None)
"""Python 3.11 has them."""


def write(page: Page, error: BaseException, thread: str = "MainThread", entry: bytes = EXCEPTION) -> None:
    """Stores an exception and what led to it: causes, contexts, the first member of a group."""
    frames = _frames(error)
    page.exception(_name(type(error)), text_of(error), thread, frames, chain_of(error), entry)


def chain_of(error: BaseException) -> list[Earlier]:
    """The exceptions that led to `error`, the first raised first."""
    found: list[Earlier] = []
    seen = {id(error)}
    while (before := _before(error)) is not None and id(before[1]) not in seen:
        led, error = before
        seen.add(id(error))
        found.append((led, _name(type(error)), text_of(error), _frames(error, _FRAMES_OF_EARLIER)))
    found.reverse()
    if len(found) > _MOST:
        found[_MOST - _KEPT_OF_THE_LAST : -_KEPT_OF_THE_LAST] = []
    return found


def _frames(error: BaseException, limit: int = 40) -> list[tuple[str, int, str]]:
    """Innermost first. A file that does not compile has no frame: the line that Python names stands for it."""
    frames = traceback_frames(error.__traceback__, limit)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames.insert(0, (absolute(error.filename), error.lineno, "<module>"))
    return frames


def _before(error: BaseException) -> tuple[str, BaseException] | None:
    """The exception that came right before this one, and how this one came of it."""
    members = getattr(error, "exceptions", None) if _GROUP is not None and isinstance(error, _GROUP) else None
    if members:
        return "group", members[0]
    if error.__cause__ is not None:
        return "cause", error.__cause__
    if error.__context__ is not None:
        return ("suppressed" if error.__suppress_context__ else "context"), error.__context__
    return None


def text_of(error: BaseException) -> str:
    """What the exception says, with the notes that were added to it; its own __str__ may fail."""
    try:
        told = str(error)
    except Exception as failed:  # noqa: BLE001  Python prints such an exception all the same
        told = f"(its text cannot be had: {type(failed).__name__})"
    notes = getattr(error, "__notes__", None)
    return "\n".join((told, *map(str, notes))) if isinstance(notes, list) else told


def _name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
