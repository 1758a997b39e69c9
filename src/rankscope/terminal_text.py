"""What text of a job may do to a terminal: colour itself, and nothing else.

Everything that comes from a job and goes to a terminal passes through here: a log line can otherwise set the window's
title, write to the clipboard, jump over other ranks' lines or switch the terminal into another mode.
"""

from __future__ import annotations

import re

_SEQUENCE = (
    r"(?:\x1b\[|\x9b)(?P<how>[0-?]*[ -/]*)(?P<what>[@-~])"  # colours, cursor moves, modes
    # Titles, clipboard, links, passed through tmux or not. What has no end is text after all: only its beginning goes.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
_ESCAPES = re.compile(_SEQUENCE)
# A lone surrogate stands for a byte that is no UTF-8: terminals of eight bits take these for the same controls.
_ESCAPES_AND_CONTROLS = re.compile(rf"{_SEQUENCE}|[\x00-\x08\x0a-\x1f\x7f-\x9f\udc80-\udc9f]")
_HARMLESS = re.compile(rb"[\t -~]*")
_COLOUR = re.compile(r"[0-9;:]*")
_RESET = "\x1b[0m"


def harmless(text: str) -> str:
    """Lines with their colours and tabs, and without any other escape sequence or control character.

    A colour ends with its line at the latest.
    """
    if text.isascii() and text.isprintable():
        return text
    return "\n".join(_harmless_line(line) for line in text.split("\n"))


def harmless_bytes(line: bytes) -> bytes:
    """The same for one line as a program wrote it, whatever bytes that are."""
    if _HARMLESS.fullmatch(line):
        return line
    return harmless(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def without_escapes(text: str) -> str:
    """Text without escape sequences, colours included; other control characters stay."""
    return _ESCAPES.sub("", text)


def _harmless_line(line: str) -> str:
    coloured = False

    def kept(found: re.Match[str]) -> str:
        nonlocal coloured
        how = found["how"]
        if found["what"] != "m" or not _COLOUR.fullmatch(how):
            return ""
        coloured = how.strip("0;:") != ""  # zeros alone, or nothing, are a reset
        return f"\x1b[{how}m"

    shown = _ESCAPES_AND_CONTROLS.sub(kept, line)
    return shown + _RESET if coloured else shown
