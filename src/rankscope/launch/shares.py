"""Whether what ranks send each other in an `all_to_all` is what the receivers expect, by their pages as they run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankscope.evidence.exchanges import count_exchanges, read_exchanges

_MOST_TRIES = 3
"""So often a close look is asked for: what it does not tell at first it may tell once the calls have completed."""
_AGAIN_S = 2.0

_Place = tuple[int, int]
"""Process group, number of the call in it."""


class ShareWatch:
    """Asked at every glance. Only groups all of whose members are among the pages are compared."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._wrong: frozenset[_Place] = frozenset()
        self._due = 0.0
        self._tries = 0

    def misfit(self, pages: Mapping[int, Path], now: float) -> bool:
        """Whether a close look at the job is worth it: two glances in a row have seen the same misfit. Raises
        EvidenceError where a page cannot be read."""
        if now < self._due or self._tries >= _MOST_TRIES:
            return False
        counts = {rank: count_exchanges(page) for rank, page in pages.items()}
        if not self._wrong and (counts == self._counts or not any(counts.values())):
            return False
        before, self._counts, self._wrong = self._wrong, counts, _misfits(pages)
        if not before & self._wrong:
            return False
        self._tries += 1
        self._due = now + _AGAIN_S
        return True


def _misfits(pages: Mapping[int, Path]) -> frozenset[_Place]:
    balances: dict[_Place, list[int]] = {}
    members: dict[_Place, int] = {}
    for page in pages.values():
        for each in read_exchanges(page):
            place = each.key, each.seq
            balances.setdefault(place, []).append(each.balance)
            members[place] = each.members
    return frozenset(
        place for place, parts in balances.items() if len(parts) == members[place] and sum(parts) % (1 << 64)
    )
