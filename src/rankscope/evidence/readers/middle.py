"""A pickled flight record without its middle: thousands of calls that all ranks made alike need not be unpickled."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FRAMES = b"X\x06\x00\x00\x00framesq"
"""The first key of a call, at its first use."""
_DEFINES = re.compile(rb"X[\s\S][\s\S]\x00\x00|u[qr]")
"""A text, or a dictionary to which later calls refer. Torch's pickler numbers nothing else."""


@dataclass(frozen=True, slots=True)
class WithoutMiddle:
    data: bytes
    """Still a pickle: of the first call, of those in the middle that later ones refer to, and of the newest."""
    calls: int
    """In `data`."""
    total: int
    """In the whole dump."""


def without_middle(data: bytes, newest: int) -> WithoutMiddle | None:
    """The dump with its first and its `newest` last calls; None where it is short, or not as torch's pickler writes.

    Bytes are taken for the beginning of a call by their looks. The reader must see whether what comes out is whole.
    """
    at = data.find(_FRAMES)
    if at < 0:
        return None
    key = data[at + len(_FRAMES) : at + len(_FRAMES) + 1]
    begin = b"}(h" + key + b"]("
    first, *calls = data.split(begin)
    middle, tail = calls[:-newest], calls[-newest:]
    if not middle:
        return None
    kept = [call for call in middle if _DEFINES.search(call) is not None]
    return WithoutMiddle(begin.join([first, *kept, *tail]), 1 + len(kept) + len(tail), 1 + len(calls))
