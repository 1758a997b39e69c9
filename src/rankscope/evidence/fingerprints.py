"""The running fingerprints of process groups that ranks keep on their pages; see `probe/fingerprints.py`."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.probe import page as layout

_SLOT_BYTES = 8 * layout.FINGERPRINT_WORDS
_TORN = 16
"""Slots that may be written while they are read are left out: so many of the oldest."""
FINE = layout.FINE_SLOTS - _TORN
COARSE = layout.COARSE_SLOTS - _TORN


class Fingerprint(msgspec.Struct, frozen=True):
    """Of one process group on one rank."""

    calls: int
    name: int
    """Of the group, as a number of the page's heap."""
    words: bytes

    def after(self, calls: int) -> tuple[int, int] | None:
        """What had been called and from where, summed up after so many calls; None where that is not known any more."""
        if calls <= 0 or calls > self.calls:
            return None
        if self.calls - calls < FINE:
            at = calls % layout.FINE_SLOTS
        elif calls % layout.COARSE_STEP == 0 and (self.calls - calls) // layout.COARSE_STEP < COARSE:
            at = layout.FINE_SLOTS + calls // layout.COARSE_STEP % layout.COARSE_SLOTS
        else:
            return None
        (word,) = struct.unpack_from("<Q", self.words, 8 * (layout.FINGERPRINT_HEAD_WORDS + at))
        return word >> 32, word & layout.FINGERPRINT_MASK


def read_fingerprints(path: Path) -> dict[int, Fingerprint]:
    """Key of a process group, the same on all its members → its fingerprint. Raises EvidenceError where the page cannot
    be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            used = min(struct.unpack("<Q", os.pread(fd, 8, layout.FINGERPRINTS_OFFSET))[0], layout.FINGERPRINT_SLOTS)
            data = os.pread(fd, used * _SLOT_BYTES, layout.FINGERPRINTS_OFFSET + 8) if used else b""
        finally:
            os.close(fd)
        found = {}
        for slot in range(used):
            head, calls = struct.unpack_from("<QQ", data, slot * _SLOT_BYTES)
            if head:
                words = data[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]
                found[head & layout.FINGERPRINT_MASK] = Fingerprint(calls, head >> 32, words)
    except (OSError, struct.error) as error:
        raise EvidenceError(f"{path}: {error}") from error
    return found


def same_place(fingerprints: list[Fingerprint]) -> int:
    """The newest number of calls of which all of them still know; 0 where there is none."""
    least, most = min(each.calls for each in fingerprints), max(each.calls for each in fingerprints)
    if most - least < FINE:
        return least
    return least - least % layout.COARSE_STEP
