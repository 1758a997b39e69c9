"""Where a value ends on its line: a text in quotes, however often it was escaped; brackets; a word."""

from __future__ import annotations

import re
from typing import NamedTuple

_OPEN = re.compile(r"[fFrRbBuU]{0,2}(?P<backslashes>\\{0,15})(?P<quote>\"{3}|'{3}|\"|')")
_QUOTE = {mark: re.compile(rf"(?<!\\)(\\*){mark}") for mark in ('"', "'", '"""', "'''")}
_BARE = re.compile(r"\S+")
_BRACKET_OR_QUOTE = re.compile(r"[()\[\]{}]|(?<!\\)\\{0,15}[\"']")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


class Quoted(NamedTuple):
    open: str
    text: str
    close: str
    """Empty where the line ends before the text does."""
    end: int


def quoted_at(line: str, at: int) -> Quoted | None:
    """The text in quotes that begins there; None where none does, or an empty one."""
    opened = _OPEN.match(line, at)
    if not opened:
        return None
    depth = len(opened["backslashes"])
    # With every level of escaping, a quote inside of the text has twice as many backslashes, and one, before it.
    for found in _QUOTE[opened["quote"]].finditer(line, opened.end()):
        count = len(found[1])
        if count % (2 * depth + 2) == depth:
            text = line[opened.end() : found.end() - depth - len(opened["quote"])]
            return Quoted(opened[0], text, line[opened.end() + len(text) : found.end()], found.end()) if text else None
        if count < depth:  # the text around it ends
            return Quoted(opened[0], line[opened.end() : found.start()], "", found.start())
    text = line[opened.end() :]
    return Quoted(opened[0], text, "", len(line)) if text else None


def bare_end(line: str, at: int) -> int:
    """Where the word that begins there ends; with brackets in it, where they are closed."""
    word = _BARE.match(line, at)
    if not word:
        return at
    opening = next((number for number, mark in enumerate(word[0], at) if mark in _PAIRS), None)
    if opening is None:
        return word.end()
    end = bracket_end(line, opening)
    return end if opening == at and line[end : end + 1] in " \t,;:)]}" else max(end, word.end())


def bracket_end(line: str, at: int) -> int:
    """Behind the bracket that closes the one there; the end of the line, where none does."""
    awaited = [_PAIRS[line[at]]]
    at += 1
    while found := _BRACKET_OR_QUOTE.search(line, at):
        at = found.end()
        mark = found[0]
        if mark in _PAIRS:
            awaited.append(_PAIRS[mark])
        elif mark == awaited[-1]:
            awaited.pop()
            if not awaited:
                return at
        elif mark[-1] in "\"'" and (quoted := quoted_at(line, found.start())):
            at = quoted.end
    return len(line)
