"""Ranks with parts of their own: a call that one of them has always made from another line than the rest, as a server
does, or a first stage. That the lines differ is then no difference between the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from rankscope.diagnosis.sequences import Item

_HABIT = 5
"""So often a line of the one must have met a line of the others, and no other one."""


def in_common_lines(items: Mapping[int, Sequence[Item | None]], until: int) -> dict[int, Sequence[Item | None]]:
    """The same sequences, with the lines of a rank's own part replaced by those that the others always have there. Only
    the first `until` calls, which all have completed, tell; a line that both sides use is never replaced."""
    common = [_most_common([made[at] for made in items.values()]) for at in range(until)]
    shared = {path for _, path in common}
    found: dict[int, Sequence[Item | None]] = {}
    for rank, made in items.items():
        own = {item.path for item in made if item is not None}
        met: dict[Hashable, Counter[Hashable]] = {}
        for mine, (what, path) in zip(made[:until], common, strict=True):
            if mine is not None and mine.path and path and mine.what == what:
                met.setdefault(mine.path, Counter())[path] += 1
        names = {
            path: other
            for path, others in met.items()
            for other, times in others.items()
            if len(others) == 1 and times >= _HABIT and path not in shared and other not in own
        }
        found[rank] = [_renamed(item, names) for item in made] if names else made
    return found


def _most_common(items: Sequence[Item | None]) -> tuple[Hashable, Hashable]:
    known = Counter((item.what, item.path) for item in items if item is not None and item.path)
    return known.most_common(1)[0][0] if known else ((), ())


def _renamed(item: Item | None, names: Mapping[Hashable, Hashable]) -> Item | None:
    return Item(item.what, names[item.path], item.step) if item is not None and item.path in names else item
