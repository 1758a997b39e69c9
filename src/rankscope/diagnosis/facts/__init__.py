"""Facts: what a rule saw, as values with ranks, places and numbers. `report/words` alone makes words of them.

A fact is a class that derives from `Fact` and lists its fields as a dataclass does; its kind in `verdict.json` is its
class's name in small letters (`WaitsIn` → `waits-in`). The facts of one subject share a file here, and their words
share a file in `report/words`.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

FACTS: dict[str, type[Fact]] = {}
"""Kind → class, of every fact that there is."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_F = TypeVar("_F", bound="Fact")


# Not a dataclass: that writes and compiles code for every class, which takes longer than all the rules of a small job.
class Fact(msgspec.Struct, frozen=True):
    """What all facts have in common: a kind that is theirs alone."""

    def __init_subclass__(cls) -> None:
        kind = kind_of(cls)
        known = FACTS.setdefault(kind, cls)
        if known is not cls:
            raise TypeError(f"two facts of the kind {kind!r}: in {known.__module__} and in {cls.__module__}")


def kind_of(fact: type[Fact]) -> str:
    return _HUMP.sub("-", fact.__name__).lower()


def changed(fact: _F, **fields: Any) -> _F:
    """The same fact with other values in these fields."""
    return msgspec.structs.replace(fact, **fields)
