"""Where in the user's own code a call comes from."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, TracebackType

from rankscope import whose_code
from rankscope.probe.page import Page

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROBE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_program = tuple(filter(None, os.environ.get("RANKSCOPE_PROGRAM", "").split(os.pathsep)))
"""Folders of the program's own package, where it was started as an installed module; see `program`."""


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


START_FOLDER = _working_folder()
CHAIN = 8
OWN_CODE = "<rankscope>"
"""File name of wrappers that have no line of their own to show."""
STAGE_CODE = "<rankscope importlib._bootstrap>"
"""The same for wrappers of stages; see there for the name."""
_IN_BETWEEN = frozenset(
    {"_wrapped_call_impl", "_call_impl", "wrapper", "inner", "decorate_context", "_no_grad_wrapper"}
)
"""Functions through which others are called: the name of the one behind them says more."""

_LONGEST_NAME = 120

Place = tuple[int, int, CodeType | None, int, int, CodeType | None, int]
"""A site's number, and how to know that another call comes from the same: how many frames above the caller's the
user's own is, its code and instruction; how many frames of others are between it and the user's next one, and the code
(None where there is no next one) and instruction of that."""
NOWHERE: Place = (0, 0, None, 0, 0, None, 0)

_user_files: dict[str, bool] = {}
_main_files: list[str] = []
"""The file of `__main__`, once it is known."""


def is_user_file(file: str) -> bool:
    """Neither the standard library, nor an installed package, nor ours; but an installed program is the user's."""
    known = _user_files.get(file)
    if known is None:
        known = _user_files[file] = whose_code.is_user_file(file, program())
    return known


def program() -> tuple[str, ...]:
    """Where the program lies if it was installed like a library: as the launcher says, or where `__main__` is."""
    global _program  # noqa: PLW0603  learned once, when the interpreter has found the program
    if not _program and not _main_files:
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        if isinstance(file, str):
            _main_files.append(file)
            if not any(argument.endswith(".py") for argument in sys.argv[1:]):  # a script that it runs is the program
                _program = whose_code.program_of(file)
            if _program:
                _user_files.clear()
    return _program


def is_own_file(file: str) -> bool:
    if file.startswith(_PROBE) or file in (OWN_CODE, STAGE_CODE):
        return True
    return file.startswith(_PACKAGE) and not is_user_file(file)


def absolute(file: str) -> str:
    """The main script's frames carry the path as it was typed."""
    return whose_code.absolute(file, START_FOLDER)


def without_ourselves(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback; the probe's own entries are taken out of it."""
    while traceback is not None and is_own_file(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    entry = traceback
    while entry is not None:
        while entry.tb_next is not None and is_own_file(entry.tb_next.tb_frame.f_code.co_filename):
            entry.tb_next = entry.tb_next.tb_next
        entry = entry.tb_next
    return traceback


def traceback_frames(traceback: TracebackType | None, limit: int = 40) -> list[tuple[str, int, str]]:
    """Innermost first."""
    frames: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((absolute(code.co_filename), traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    frames.reverse()
    return frames[:limit]


class Sites:
    """Numbers call sites on a page; a site seen before costs one dictionary look-up."""

    def __init__(self, page: Page) -> None:
        self._page = page
        # By identity and instruction: a code object's hash is computed from all its instructions each time, a line
        # number from a table. The code objects are kept, so that no other takes the same identity.
        self._numbers: dict[tuple[int, int, int, int], int] = {}
        self._kept: list[CodeType] = []

    def number(self, frame: FrameType | None) -> int:
        """The heap number of the innermost user frames at or above `frame`; 0 where there is none."""
        inner = frame
        try:
            # Every step comes by here: files that are known, and a site that is.
            while not _user_files[inner.f_code.co_filename]:  # type: ignore[union-attr]
                inner = inner.f_back  # type: ignore[union-attr]
            outer = inner.f_back  # type: ignore[union-attr]
            if outer is not None:
                # Where both are the user's own. Keys hold nothing but users' frames: no other can be found.
                key = (id(inner.f_code), inner.f_lasti, id(outer.f_code), outer.f_lasti)  # type: ignore[union-attr]
                if key in self._numbers:
                    return self._numbers[key]
            while outer is not None and not _user_files[outer.f_code.co_filename]:
                outer = outer.f_back
        except (KeyError, AttributeError):
            inner = _next_user(frame)
            if inner is None:
                return 0
            outer = _next_user(inner.f_back)
        assert inner is not None
        if outer is None:
            key = (id(inner.f_code), inner.f_lasti, 0, 0)
        else:
            key = (id(inner.f_code), inner.f_lasti, id(outer.f_code), outer.f_lasti)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._page.site(_chain(inner), _through(frame, inner))
            self._kept.append(inner.f_code)
            if outer is not None:
                self._kept.append(outer.f_code)
        return number

    def place(self, frame: FrameType) -> Place:
        number, above, inner = self.number(frame), 0, frame
        while not is_user_file(inner.f_code.co_filename):
            if inner.f_back is None:
                return NOWHERE
            inner, above = inner.f_back, above + 1
        outer, between = inner.f_back, 0
        while outer is not None and not is_user_file(outer.f_code.co_filename):
            outer, between = outer.f_back, between + 1
        if outer is None:
            return number, above, inner.f_code, inner.f_lasti, between, None, 0
        return number, above, inner.f_code, inner.f_lasti, between, outer.f_code, outer.f_lasti


def is_whole_site(frame: FrameType) -> bool:
    """Whether this frame and its caller's tell the site: both are the user's own, or nobody called it."""
    outer = frame.f_back
    return is_user_file(frame.f_code.co_filename) and (outer is None or is_user_file(outer.f_code.co_filename))


def user_frames(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """The innermost user frames at or above `frame`."""
    return _chain(frame)


def _next_user(frame: FrameType | None) -> FrameType | None:
    known = _user_files
    while frame is not None:
        file = frame.f_code.co_filename
        if known.get(file) or (file not in known and is_user_file(file)):
            return frame
        frame = frame.f_back
    return None


def _chain(frame: FrameType | None) -> list[tuple[str, int, str]]:
    chain: list[tuple[str, int, str]] = []
    while (frame := _next_user(frame)) is not None and len(chain) < CHAIN:
        chain.append((absolute(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return chain


def _through(frame: FrameType | None, user: FrameType) -> str:
    """The outermost function of a library between the user's frame and `frame`: what the user's line called, where that
    is not the recorded call itself."""
    found = ""
    while frame is not None and frame is not user:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 has it
        if code.co_name not in _IN_BETWEEN and "<" not in name and not is_own_file(code.co_filename):
            found = name
        frame = frame.f_back
    return found[:_LONGEST_NAME]
