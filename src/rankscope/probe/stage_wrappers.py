"""Wraps well-known calls as stages so that nobody notices: same signature, pickle, tracebacks and warnings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from rankscope.probe.sites import STAGE_CODE, is_user_file
from rankscope.probe.stages import OpenStage, StageBook

_frame_of = sys._getframe


class Call(NamedTuple):
    """A call that is a stage."""

    label: str
    """What is being called: `WandbLogger.__init__`. `{cls}` stands for the class of the first argument."""
    words: str
    """What is said once it is done: `WandbLogger ready`."""
    kind: str
    """What it belongs to; a call inside another of its kind is part of that one."""
    announce: bool = True
    """A call that may take long: told before it is made."""
    note: Callable[[tuple[Any, ...], dict[str, Any]], str] | None = None
    """What to add about this very call: `strategy=auto`."""
    before: Callable[[StageBook, FrameType, tuple[Any, ...], dict[str, Any]], None] | None = None
    after: Callable[[StageBook, Any], None] | None = None
    failed: Callable[[StageBook], None] | None = None
    """What to tell where the call raises."""
    from_user: bool = False
    """Only where the user's own code makes the call."""
    once: bool = False
    """Only where nothing of its kind was passed before."""


def wrap_attribute(book: StageBook, owner: Any, name: str, call: Call) -> None:
    """Replaces a function of a module, or a method of a class, static and class methods included."""
    raw = vars(owner).get(name)
    if raw is None:
        return  # this version of the library has no such thing
    if isinstance(raw, (classmethod, staticmethod)):
        setattr(owner, name, type(raw)(_wrap(book, raw.__func__, call)))
    else:
        setattr(owner, name, _wrap(book, raw, call))


# Warnings count stack levels without frames whose file name has `importlib` and `_bootstrap` in it, and the traceback
# entry of the frame is taken out as the exception passes: neither shows that the wrapper is there.
_SOURCE = """\
def make(func, begin, failed, end, after, wraps):
    @wraps(func)
    def wrapper(*args, **kwargs):
        stage = begin(args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            failed(stage)
            raise
        end(stage)
        if after is not None and stage is not None:
            after(result)
        return result
    return wrapper
"""
_scope: dict[str, Any] = {}
exec(compile(_SOURCE, STAGE_CODE, "exec"), _scope)


def _wrap(book: StageBook, function: Any, call: Call) -> Any:
    label, words, kind, announce = call.label, call.words, call.kind, call.announce
    named = "{cls}" in label or "{cls}" in words

    def begin(*_: object) -> OpenStage | None:
        return book.begin(label, words, kind, _frame_of(2), "", announce)

    def begin_with_care(args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenStage | None:
        if not book.enabled:
            return None
        frame = _frame_of(2)
        if call.from_user and not is_user_file(frame.f_code.co_filename):
            return None
        if call.once and kind in book.kinds:
            return None
        try:
            about, said = label, words
            if named:
                name = _class_name(args)
                about, said = label.replace("{cls}", name), words.replace("{cls}", name)
            note = call.note(args, kwargs) if call.note is not None else ""
            if call.before is not None:
                call.before(book, frame, args, kwargs)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            book._give_up(error)
            return None
        return book.begin(about, said, kind, frame, note=note, announce=announce)

    def failed(stage: OpenStage | None) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            hide_own_entry(error)
        book.end(stage, failed=True)
        if call.failed is not None and stage is not None:
            try:
                call.failed(book)
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                book._give_up(error)

    def after(result: Any) -> None:
        if call.after is not None:
            try:
                call.after(book, result)
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                book._give_up(error)

    plain = not named and call.note is None and call.before is None and not call.from_user and not call.once
    return _scope["make"](
        function,
        begin if plain else begin_with_care,
        failed,
        book.end,
        after if call.after is not None else None,
        functools.wraps,  # a builtin has no attributes to copy beyond its name and text
    )


def hide_own_entry(error: BaseException) -> None:
    """Takes the wrapper's entry off the top of the traceback. The bare `raise` that follows adds none."""
    entry = error.__traceback__
    if entry is not None and entry.tb_frame.f_code.co_filename == STAGE_CODE:
        error.__traceback__ = entry.tb_next


def _class_name(args: tuple[Any, ...]) -> str:
    if not args:
        return "object"
    first = args[0]
    return first.__name__ if isinstance(first, type) else type(first).__name__
