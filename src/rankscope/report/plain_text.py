"""Small pieces of text that several reports share."""

from __future__ import annotations

import os
import unicodedata

from rankscope.terminal_text import without_escapes


def plain(text: str) -> str:
    """One line without terminal escapes or control characters: text of a job may carry any."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    text = without_escapes(text)
    return " ".join("".join(_visible(character) for character in text).split())


def duration(seconds: float) -> str:
    """`1.8 s`, `12 min 5 s`, `3 h 20 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(number: int, *, digits: int = 1) -> str:
    """`512 MB`, `1.5 GB`, as torch counts: 1 GB is 1,024 MB. `digits`: of gigabytes, behind the point."""
    return f"{number / (1 << 30):.{digits}f} GB" if number >= 1 << 30 else f"{number / (1 << 20):.0f} MB"


def short_path(path: str) -> str:
    """Relative to the current folder when it lies below it."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # The folder was removed under us.
        return path
    return os.path.relpath(path, here) if path.startswith(here.rstrip("/") + "/") else path


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cf":
        return ""
    return "?" if category in ("Cs", "Cn") else character
