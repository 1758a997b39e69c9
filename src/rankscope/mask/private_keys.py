"""Private keys out of texts, over all their lines, whatever a logger has put before each."""

from __future__ import annotations

import re

from rankscope.mask.names import MASK
from rankscope.terminal_text import without_escapes

# In JSON and in a repr the line ends are escaped, and once more where that is inside JSON again.
_END_OF_LINE = r"\\{1,16}[nr]"
_LAST = rf"[A-Za-z0-9+/=]{{1,15}}(?=(?:{_END_OF_LINE}|\s){{0,9}}-----END)"
_IN_ONE_LINE = re.compile(
    rf"(-----BEGIN[ A-Z]{{0,40}} PRIVATE KEY(?: BLOCK)?-----)"
    rf"((?:{_END_OF_LINE}|[\s>\#|\"']|[A-Za-z-]{{3,20}}:[ ][^\\]{{0,100}}(?=\\)|[A-Za-z0-9+/=]{{16,}}|{_LAST})+)"
)
_BEGIN = re.compile(r"-----BEGIN[ A-Z]{0,40} PRIVATE KEY")
_END = re.compile(r"-----END[ A-Z]{0,40} PRIVATE KEY")
# What stands last in a line, but for quotes and brackets of source code and JSON; a long one anywhere.
_BODY = re.compile(
    rf"(?<![A-Za-z0-9+/=])(?:[A-Za-z0-9+/=]{{40,}}|[A-Za-z0-9+/=]{{16,}}(?=(?:{_END_OF_LINE})?[\"',;)\]}}+\\\s]*$))"
)
_SHORT_BODY = re.compile(rf"(?<![^\s\"'>|:\]])[A-Za-z0-9+/=]{{1,15}}(?=(?:{_END_OF_LINE})?[\"'\s]*$)")
_HEADER = re.compile(r"\b(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|MessageID): ")


def without_private_keys(text: str) -> str:
    """As many lines as before."""
    if "PRIVATE KEY" not in text:
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _BEGIN.search(line):
            lines[number] = _IN_ONE_LINE.sub(_without_body, line)
            if not _END.search(line):
                _mask_after(lines, number + 1)
        elif _END.search(line):
            _mask_before(lines, number - 1)
    return "\n".join(lines)


def _without_body(key: re.Match[str]) -> str:
    return f"{key[1]}{MASK}" if re.search("[A-Za-z0-9+/=]{16}", key[2]) else key[0]


def _mask_after(lines: list[str], at: int) -> None:
    begun = header = False
    while at < len(lines) and not _END.search(lines[at]):
        line = without_escapes(lines[at])
        ends = begun and any(map(_END.search, lines[at + 1 : at + 3]))
        if (masked := _BODY.sub(MASK, line)) != line or (ends and (masked := _SHORT_BODY.sub(MASK, line)) != line):
            lines[at] = masked
            begun = True
        elif not header and line.strip() and not _HEADER.search(line):
            return
        header = _HEADER.search(line) is not None  # a line of nothing but the logger's own words follows it
        at += 1


def _mask_before(lines: list[str], at: int) -> None:
    """Of a key whose beginning is cut off, as in the last lines of a log."""
    if at > 0 and not _BODY.search(lines[at]) and _BODY.search(lines[at - 1]):
        lines[at] = _SHORT_BODY.sub(MASK, lines[at])
        at -= 1
    while at >= 0 and (masked := _BODY.sub(MASK, line := without_escapes(lines[at]))) != line:
        lines[at] = masked
        at -= 1
