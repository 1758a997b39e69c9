"""Pieces of sentences: ranks, places, verbs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rankscope.diagnosis.verdict import Where

NO_LINE = "a line that was not recorded"
"""Said of calls that torch's own C++ issued, and of ranks whose notes are lost."""


def rank_list(ranks: Iterable[int], most: int = 12, more: str = "{pieces} and {count} more") -> str:
    """`0-2, 4`; after `most` pieces, how many are left out, in the words of `more`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    # Two neighbours read better as two.
    runs = [piece for run in runs for piece in ([run] if len(run) > 2 else [[rank] for rank in run])]
    pieces = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(pieces) <= most:
        return ", ".join(pieces)
    return more.format(pieces=", ".join(pieces[:most]), count=sum(map(len, runs[most:])))


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2, 4`."""
    known = sorted(set(ranks))
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {rank_list(known)}"


def who(rank: int | None) -> str:
    """`rank 3`; of a line in a log it may not be known whose it is."""
    return f"rank {rank}" if rank is not None else "a rank that the log does not name"


def verb(ranks: tuple[int, ...] | list[int], word: str) -> str:
    """`rank 2 waits`, `ranks 0, 1 wait`."""
    return f"{word}s" if len(set(ranks)) == 1 else word


def place(at: Where | None) -> str:
    """`push_metrics (train.py:88)`, or an honest nothing."""
    if at is None:
        return "a line that is not known"
    name = os.path.basename(at.file)
    return f"{name}:{at.line}" if at.function == "<module>" else f"{at.function} ({name}:{at.line})"


def with_victims(text: str, culprits: int, victims: tuple[int, ...], *, failed: bool) -> str:
    """`rank 2 ...; ranks 0, 1 wait for it`."""
    if not victims or not culprits:
        return text
    them = "it" if culprits == 1 else "them"
    does = f"failed with {them}" if failed else f"{verb(victims, 'wait')} for {them}"
    return f"{text}; {ranks_text(victims)} {does}"


def span(seconds: float) -> str:
    """`12 s`, `12 min`, `3 h`, `4 days`: as exactly as a person needs it."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def after_steps(count: int, what: str = "step") -> str:
    """`after 5 steps`: how many were made. Programs number their own from 0 or from 1, so that `step 5` is either."""
    return f"after {count:,} {what}{'' if count == 1 else 's'}"
