"""Passes over data loaders, compared between ranks: who came to the end of one before the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter

import msgspec

from rankscope.evidence.model import Frame, Progress


class Run(msgspec.Struct, frozen=True):
    """One pass of a rank over a loader."""

    number: int
    place: tuple[tuple[str, int], ...]
    """Where the program asks for batches: passes of the same number and place belong together."""
    batches: int
    over: bool


class Shortage(msgspec.Struct, frozen=True):
    """A rank whose pass over a loader was over while another rank took more batches in the same pass."""

    batches: int
    other: int
    other_batches: int


def shortages(written: Mapping[int, Progress]) -> dict[int, Shortage]:
    """By exhaustion; by the loader's length, where a framework stops there without asking for more; or by the next
    loader that the rank began. With equally many batches, the other rank may simply stand in the last one."""
    runs = {rank: runs_of(progress) for rank, progress in written.items()}
    best: dict[object, list[tuple[int, int]]] = {}
    for rank, theirs in runs.items():
        for run in theirs:
            ahead = best.setdefault((run.number, run.place), [])
            if not ahead or run.batches > ahead[-1][0]:
                ahead.append((run.batches, rank))
    found = {}
    for rank, mine in runs.items():
        short = next((each for own in mine if (each := _shortage(own, best[own.number, own.place])) is not None), None)
        if short is not None:
            found[rank] = short
    return found


def _shortage(own: Run, ahead: Sequence[tuple[int, int]]) -> Shortage | None:
    """`ahead`: batches and rank of each that had more than all before it. The first with more than `own` is one."""
    if not own.over:
        return None
    at = bisect_right(ahead, own.batches, key=itemgetter(0))
    return Shortage(own.batches, ahead[at][1], ahead[at][0]) if at < len(ahead) else None


def runs_of(progress: Progress) -> tuple[Run, ...]:
    """Oldest first."""
    now = progress.loader
    if now is None:
        return ()
    over = now.exhausted or 0 < now.length <= now.batches
    # In the middle of a pass a program may look at other data, as in an evaluation; where no length is known (-1), the
    # next one tells that it was over.
    earlier = (
        Run(run.number, _place(run.site), run.batches, run.length <= run.batches) for run in progress.earlier_loaders
    )
    return (*earlier, Run(now.number, _place(now.site), now.batches, over))


def _place(site: tuple[Frame, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((frame.file, frame.line) for frame in site[:1])
