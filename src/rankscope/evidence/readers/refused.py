"""What could not be used as evidence, and why: named, never left out silently."""

from __future__ import annotations

import msgspec


class Refused(msgspec.Struct, frozen=True):
    name: str
    """The file as the user called it."""
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"
