"""DDP refuses models that differ between ranks; its messages say how many parameters each rank has."""

from __future__ import annotations

import re
from collections import Counter

from rankscope.evidence.model import Evidence

_COUNTS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")


def odd_models(evidence: Evidence) -> tuple[int, ...]:
    """The ranks whose number of parameters differs from the others'; empty where that does not single anybody out."""
    counts: dict[int, int] = {}
    for seen in evidence.ranks:
        texts = [text for error in seen.exceptions for text in (error.message, *(each.message for each in error.chain))]
        for text in texts:
            for own, mine, other, theirs in _COUNTS.findall(text):
                counts[int(own)] = int(mine)
                # 0 stands for a rank that gave no answer.
                if theirs != "0":
                    counts.setdefault(int(other), int(theirs))
    usual = Counter(counts.values()).most_common(2)
    if len(usual) < 2 or usual[0][1] == usual[1][1]:
        return ()
    return tuple(sorted(rank for rank, count in counts.items() if count != usual[0][0]))
