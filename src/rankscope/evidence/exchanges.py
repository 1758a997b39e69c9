"""The shares of `all_to_all` calls that ranks keep on their pages; see `probe/exchanges.py`."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.probe import page as layout

_SLOT_BYTES = 8 * layout.EXCHANGE_WORDS
_TORN = 16
"""Slots that may be written while they are read are left out: so many of the oldest."""
_BYTES = layout.EXCHANGE_SLOTS * _SLOT_BYTES


class Exchange(msgspec.Struct, frozen=True):
    key: int
    """Of the process group, the same on all its members."""
    name: int
    """Of the group, as a number of the page's heap."""
    seq: int
    balance: int
    sends: tuple[int, ...]
    receives: tuple[int, ...]

    @property
    def members(self) -> int:
        return len(self.sends)


def count_exchanges(path: Path) -> int:
    """How many there have been. Raises EvidenceError where the page cannot be read."""
    return int(struct.unpack("<Q", _read(path, 8))[0])


def read_exchanges(path: Path) -> list[Exchange]:
    """The newest of them. Raises EvidenceError where the page cannot be read."""
    data = _read(path, 8 + _BYTES)
    return _newest(data[8:], struct.unpack_from("<Q", data)[0])


def _read(path: Path, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size, layout.EXCHANGES_OFFSET)
        finally:
            os.close(fd)
    except OSError as error:
        raise EvidenceError(f"{path}: {error}") from error
    if len(data) < size:
        raise EvidenceError(f"{path}: not a page of this version of rankscope")
    return data


def exchanges_of(page: bytes) -> list[Exchange]:
    """Of a page that was read whole."""
    (total,) = struct.unpack_from("<Q", page, layout.EXCHANGES_OFFSET)
    at = layout.EXCHANGES_OFFSET + 8
    return _newest(page[at : at + _BYTES], total) if total else []


def _newest(data: bytes, total: int) -> list[Exchange]:
    kept = total if total <= layout.EXCHANGE_SLOTS else layout.EXCHANGE_SLOTS - _TORN
    found = []
    for number in range(total - kept, total):
        at = number % layout.EXCHANGE_SLOTS * _SLOT_BYTES
        key, seq, members, balance = struct.unpack_from("<QQQQ", data, at)
        if not key or not 0 < members <= layout.EXCHANGE_MEMBERS:
            continue
        first = at + 8 * layout.EXCHANGE_HEAD_WORDS
        sends = struct.unpack_from(f"<{members}Q", data, first)
        receives = struct.unpack_from(f"<{members}Q", data, first + 8 * layout.EXCHANGE_MEMBERS)
        found.append(Exchange(key & 0xFFFFFFFF, key >> 32, seq, balance, sends, receives))
    return found
