"""Facts: what a rule saw, as values with ranks, places and numbers. `report/words` alone makes words of them.

A fact is a frozen dataclass that derives from `Fact`; its kind in `verdict.json` is its class's name in small letters
(`WaitsIn` → `waits-in`). The facts of one subject share a file here, and their words share a file in `report/words`.
"""

from __future__ import annotations

import re

FACTS: dict[str, type[Fact]] = {}
"""Kind → class, of every fact that there is."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Fact:
    __slots__ = ()

    def __init_subclass__(cls) -> None:
        FACTS[kind_of(cls)] = cls  # a dataclass with slots is made twice: the second is the one that is used


def kind_of(fact: type[Fact]) -> str:
    return _HUMP.sub("-", fact.__name__).lower()
