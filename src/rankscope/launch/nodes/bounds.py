"""Bounds on what comes over the network, before anything is made of it."""

from __future__ import annotations

import re
import zlib
from itertools import accumulate

MOST_PACKED = 64 << 20
MOST_UNPACKED = 96 << 20
_PER_RANK = 8 << 20
_PER_NODE = 16 << 20
_MOST_DEPTH = 64

# Characters that steer a terminal or turn the order of text around, as JSON writes them and as UTF-8 does.
# An escaped backslash comes first: what follows it is no escape.
_STEERING = re.compile(
    rb"\\\\|\\u(?:00(?:0[0-9a-fA-F]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|20(?:0[eEfF]|2[89a-eA-E]|6[6-9]))"
    rb"|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\x7f"
)


class TooMuch(Exception):
    """More than a node can have to say."""


def most_unpacked(ranks: int) -> int:
    """Bytes that a node with so many ranks may send for one look."""
    return min(MOST_UNPACKED, _PER_NODE + _PER_RANK * ranks)


def unpacked(data: bytes, ranks: int) -> bytes:
    """The JSON in a parcel of a node with so many ranks. Raises TooMuch before it takes the memory."""
    if len(data) > MOST_PACKED:
        raise TooMuch(f"a parcel of {len(data) >> 20} MB")
    most = most_unpacked(ranks)
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, most + 1)
    except zlib.error as error:
        raise TooMuch(f"a parcel that cannot be unpacked: {error}") from error
    if len(text) > most or unpacking.unconsumed_tail:
        raise TooMuch(f"a parcel of more than {most >> 20} MB")
    if not unpacking.eof:
        raise TooMuch("a parcel that is cut off")
    if too_deep(text):
        raise TooMuch(f"a parcel nested deeper than {_MOST_DEPTH}")
    return text


_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One deeper, one less deep, as signed bytes."""


def too_deep(text: bytes, most: int = _MOST_DEPTH) -> bool:
    """Whether brackets of JSON are nested deeper than that."""
    steps = _STRINGS.sub(b"", text).translate(_STEPS, _NO_BRACKET)
    return any(map(most.__lt__, accumulate(memoryview(steps).cast("b"))))


def plain_json(text: bytes) -> bytes:
    """JSON whose texts hold nothing that steers a terminal."""
    return _STEERING.sub(lambda found: found[0] if found[0] == rb"\\" else b" ", text)
