"""Lines that `rankscope run` showed once for several ranks (`R0-7:`), as each of them had printed it."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MERGED = re.compile(rb"^(R|GPU)(\d{1,6}(?:[,-]\d{1,6})+):([^\n]*)$", re.MULTILINE)
_MOST = 64
"""Ranks of one node; a line that names more is nothing of ours."""


def with_lines_of_all(piece: bytes) -> bytes:
    """Text in which each line has one rank."""
    return _MERGED.sub(_of_all, piece) if _MERGED.search(piece) else piece


def _of_all(match: re.Match[bytes]) -> bytes:
    label, names, text = match.groups()
    ranks = list(_ranks(names))
    if not 2 <= len(ranks) <= _MOST:
        return match.group()
    return b"\n".join(b"%s%d:%s" % (label, rank, text) for rank in ranks)


def _ranks(names: bytes) -> Iterator[int]:
    for name in names.split(b","):
        first, _, last = name.partition(b"-")
        yield from range(int(first), min(int(last or first), int(first) + _MOST) + 1)
