"""What could not be used as evidence, and why: named, never left out silently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    name: str
    """The file as the user called it."""
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"
