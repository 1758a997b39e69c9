"""What text of a job may do to a terminal: colour itself, and nothing else.

Everything that comes from a job and goes to a terminal passes through here: a log line can otherwise set the window's
title, write to the clipboard, jump over other ranks' lines or switch the terminal into another mode.
"""

from __future__ import annotations

import re
import unicodedata

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
_WORDS = re.compile(r"(\s*)(\S+)")


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


def columns(text: str) -> int:
    """How wide a terminal shows it: Korean, Chinese and Japanese characters take two columns."""
    return len(text) if text.isascii() else sum(map(_character_columns, text))


def wrapped(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """Lines no wider than that, the first after `first` and the others after `then`. A word stays in one piece, to be
    clicked and copied, even where it is wider."""
    lines, used, begun = [first], columns(first), False
    for blank, word in _WORDS.findall(text):
        if begun and used + len(blank) + columns(word) > width:
            lines.append(then)
            used, begun = columns(then), False
        piece = f"{blank}{word}" if begun else word
        lines[-1] += piece
        used, begun = used + columns(piece), True
    return lines


def padded(text: str, width: int) -> str:
    return text + " " * max(0, width - columns(text))


def _character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
