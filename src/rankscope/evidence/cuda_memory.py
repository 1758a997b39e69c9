"""What torch's own message says of a GPU whose memory ran out."""

from __future__ import annotations

import re

import msgspec

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) (bytes|[KMGT]iB)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_IDLE = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")


class ToldMemory(msgspec.Struct, frozen=True):
    """Bytes; 0 where the message does not say."""

    device: int
    asked: int
    total: int
    free: int
    allocated: int
    """In tensors of this process."""
    idle: int
    """Kept by torch's allocator and not in use."""
    allowed: int
    """A limit that the program has set for itself."""
    others: tuple[tuple[int, int], ...]
    """Pid and bytes of the other processes on the GPU, the largest first."""


def told_memory(message: str) -> ToldMemory | None:
    """None where the text is no such message."""
    total = _TOTAL.search(message)
    if total is None or "out of memory" not in message:
        return None
    others = [(int(pid), _bytes(number, unit)) for pid, number, unit in _OTHER.findall(message)]
    return ToldMemory(
        device=int(total[1]),
        asked=_first(_ASKED, message),
        total=_bytes(total[2], total[3]),
        free=_bytes(total[4], total[5]),
        allocated=_first(_ALLOCATED, message),
        idle=_first(_IDLE, message),
        allowed=_first(_ALLOWED, message),
        others=tuple(sorted(others, key=lambda each: -each[1])),
    )


def _first(pattern: re.Pattern[str], message: str) -> int:
    found = pattern.search(message)
    return _bytes(found[1], found[2]) if found is not None else 0


def _bytes(number: str, unit: str) -> int:
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:
        return 0
