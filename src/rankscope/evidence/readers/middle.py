"""A pickled flight record without its middle: thousands of calls that all ranks made alike need not be unpickled."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_FRAMES = b"X\x06\x00\x00\x00framesq"
"""The first key of a call, at its first use."""
_DICTIONARY_NUMBERED = (b"uq", b"ur")
_TEXT = ord("X")
"""Then comes the length of the text in four bytes, of which the last two are nought."""


class WithoutMiddle(msgspec.Struct, frozen=True):
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
    tail = len(data)
    for _ in range(newest):
        tail = data.rfind(begin, 0, tail)
        if tail < 0:
            return None
    second = data.find(begin)
    if second >= tail:
        return None
    kept = _referred_to(data, begin, second, tail)
    return WithoutMiddle(b"".join([data[:second], *kept, data[tail:]]), 1 + len(kept) + newest, 1 + data.count(begin))


def _referred_to(data: bytes, begin: bytes, start: int, end: int) -> list[bytes]:
    """The calls in that part of the dump to which later ones may refer: they hold a new text or dictionary.

    Torch's pickler numbers nothing else. A number that is missed is an error of the unpickler's, not another value.
    """
    marks = [at for words in _DICTIONARY_NUMBERED for at in _places(data, words, start, end)]
    marks += [at for at in _places(data, b"\0\0", start, end) if data[at - 3] == _TEXT]
    calls: list[bytes] = []
    last = start
    for mark in sorted(marks):
        if mark < last:
            continue
        last = data.find(begin, mark, end)
        last = end if last < 0 else last
        calls.append(data[data.rfind(begin, start, mark) : last])
    return calls


def _places(data: bytes, words: bytes, start: int, end: int) -> Iterator[int]:
    at = data.find(words, start, end)
    while at >= 0:
        yield at
        at = data.find(words, at + 1, end)
