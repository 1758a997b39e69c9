"""Text of a job, made fit to be shown: one line each, bounded, without secrets, without what a terminal would obey."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

from rankscope.diagnosis.verdict import Where
from rankscope.evidence.model import Frame
from rankscope.mask import mask_code, mask_text
from rankscope.terminal_text import without_escapes

LONGEST_LINE = 600
"""Characters of one line that are shown."""
_MASKED = 8 * LONGEST_LINE
"""Masking looks at no more than this of a line: one of megabytes would take it long."""


def output_line(text: str) -> str:
    """A line that the program wrote; of a progress bar, what stood there last."""
    return _masked(text.rstrip("\r\n").rpartition("\r")[2], mask_text)


def code_line(text: str) -> str:
    """A line of source; secrets in quotes masked, its indentation kept."""
    return _masked(text, mask_code)


def shown(text: str, most: int = LONGEST_LINE) -> str:
    """One line as it would look, its blanks kept."""
    return _cut(_clean(text), most)


def _masked(text: str, mask: Callable[[str], str]) -> str:
    if len(text) <= _MASKED:
        return shown(mask(text))
    return f"{_clean(mask(text[:_MASKED]))[:LONGEST_LINE]} … {len(text) - LONGEST_LINE:,} more characters"


def _clean(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_visible, without_escapes(text.expandtabs(4))))
    return text.rstrip()


def rank_ranges(ranks: Iterable[int], most: int = 12) -> str:
    """`0-2,5`: short, for the branches of a tree and the heads of columns; after `most` pieces, how many are left."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    pieces = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(pieces) <= most:
        return ",".join(pieces)
    return f"{','.join(pieces[:most])} +{sum(map(len, runs[most:]))}"


def short_file(file: str) -> str:
    """A file as one speaks of it: `train.py`, of a library with its package (`torch/nn/parallel/ddp.py`)."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    return os.path.basename(file) or file


def place(at: Where | Frame | None) -> str:
    """`train.py:88`; empty where it is not known."""
    return "" if at is None else f"{short_file(at.file)}:{at.line}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} more characters"


@lru_cache(maxsize=4096)
def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cf":  # marks that turn the direction of writing among them
        return ""
    return "�" if category in ("Cs", "Cn") else character
