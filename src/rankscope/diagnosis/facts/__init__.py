"""Facts: what a rule saw, as values with ranks, places and numbers. `report/words` alone makes words of them.

A fact is a frozen dataclass that derives from `Fact`; its kind in `verdict.json` is its class's name in small letters
(`WaitsIn` → `waits-in`). The facts of one subject share a file here, and their words share a file in `report/words`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FACTS: dict[str, type[Fact]] = {}
"""Kind → class, of every fact that there is."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Fact:
    """What all facts have in common: a kind that is theirs alone."""

    def __init_subclass__(cls) -> None:
        kind = kind_of(cls)
        known = FACTS.get(kind, cls)
        # A dataclass with slots is made twice: the second is the one that is used.
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"two facts of the kind {kind!r}: in {known.__module__} and in {cls.__module__}")
        FACTS[kind] = cls


def kind_of(fact: type[Fact]) -> str:
    return _HUMP.sub("-", fact.__name__).lower()
