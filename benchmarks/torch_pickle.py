"""Writes a flight record in the very bytes in which torch's own pickler writes it.

Python's pickler numbers every list and dictionary; torch's only texts, by their value, and frames, which calls share.
"""

from __future__ import annotations

import struct
from typing import Any


def torch_pickle(dump: dict[str, Any]) -> bytes:
    """The dump as a pickle. Dictionaries with a file name are frames: equal ones are written once."""
    writer = _Writer()
    writer.write(dump)
    return b"\x80\x02" + b"".join(writer.parts) + writer.put() + b"."


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._known: dict[object, int] = {}
        self._numbers = 0

    def write(self, value: object) -> None:
        if isinstance(value, str):
            self._text(value)
        elif value is None:
            self.parts.append(b"N")
        elif isinstance(value, bool):
            self.parts.append(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            self.parts.append(_integer(value))
        elif isinstance(value, float):
            self.parts.append(b"G" + struct.pack(">d", value))
        elif isinstance(value, tuple):
            for item in value:
                self.write(item)
            self.parts.append(b"\x86")
        elif isinstance(value, list):
            self.parts.append(b"](")
            for item in value:
                self.write(item)
            self.parts.append(b"e")
        elif isinstance(value, dict):
            self._dictionary(value)

    def put(self) -> bytes:
        number, self._numbers = self._numbers, self._numbers + 1
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def _again(self, key: object) -> bool:
        number = self._known.get(key)
        if number is None:
            return False
        self.parts.append(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))
        return True

    def _text(self, value: str) -> None:
        if self._again(value):
            return
        data = value.encode()
        self._known[value] = self._numbers
        self.parts.append(b"X" + struct.pack("<I", len(data)) + data + self.put())

    def _dictionary(self, value: dict[Any, Any]) -> None:
        frame = tuple(value.items()) if "filename" in value else None
        if frame is not None and self._again(frame):
            return
        self.parts.append(b"}(")
        for key, item in value.items():
            self.write(key)
            self.write(item)
        self.parts.append(b"u")
        if frame is not None:
            self._known[frame] = self._numbers
            self.parts.append(self.put())


def _integer(value: int) -> bytes:
    if 0 <= value < 2**8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 2**16:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
