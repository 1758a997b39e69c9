"""Words under a seal: whoever has the job's key knows who else has it.

A word that carries no seal, or one of another key, is still a word: it may inform, and never command.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

_PLAIN, _SEALED = b"\0", b"\1"
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Word:
    content: bytes
    verified: bool
    """Said by somebody who has the key."""


def key_of_attempt(key: bytes | None, *attempt: object) -> bytes | None:
    """A key for one attempt of one job alone: what was sealed with it is no word of another."""
    return hmac.new(key, ascii(attempt).encode(), hashlib.sha256).digest() if key else None


class Seal:
    """Of one job; without a key nothing is sealed, and nothing verified."""

    def __init__(self, key: bytes | None) -> None:
        # A key of its own for this use, whatever else the given one may be used for.
        self._key = hmac.new(key, b"rankscope words between nodes", hashlib.sha256).digest() if key else None

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def close(self, place: str, content: bytes) -> bytes:
        """`place`: where the word is left. It is sealed with it, so that no word can be moved elsewhere."""
        return _PLAIN + content if self._key is None else _SEALED + self._mac(self._key, place, content) + content

    def open(self, place: str, data: bytes) -> Word:
        if data[:1] != _SEALED:
            return Word(data[1:], verified=False)
        mac, content = data[1 : 1 + _MAC_BYTES], data[1 + _MAC_BYTES :]
        verified = self._key is not None and hmac.compare_digest(mac, self._mac(self._key, place, content))
        return Word(content, verified)

    @staticmethod
    def _mac(key: bytes, place: str, content: bytes) -> bytes:
        named = place.encode()
        return hmac.new(key, len(named).to_bytes(4, "big") + named + content, hashlib.sha256).digest()
