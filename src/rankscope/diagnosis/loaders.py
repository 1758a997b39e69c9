"""Passes over data loaders, compared between ranks: who came to the end of one before the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.evidence.model import Frame, Progress


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of a rank over a loader."""

    number: int
    place: tuple[tuple[str, int], ...]
    """Where the program asks for batches: passes of the same number and place belong together."""
    batches: int
    over: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """A rank whose pass over a loader was over while another rank took more batches in the same pass."""

    batches: int
    other: int
    other_batches: int


def shortages(written: Mapping[int, Progress]) -> dict[int, Shortage]:
    """By exhaustion; by the loader's length, where a framework stops there without asking for more; or by the next
    loader that the rank began. With equally many batches, the other rank may simply stand in the last one."""
    runs = {rank: runs_of(progress) for rank, progress in written.items()}
    found = {}
    for rank, mine in runs.items():
        ahead = [
            Shortage(own.batches, other, theirs.batches)
            for own in mine
            if own.over
            for other, each in runs.items()
            if other != rank
            for theirs in each
            if (theirs.number, theirs.place) == (own.number, own.place) and theirs.batches > own.batches
        ]
        if ahead:
            found[rank] = ahead[0]
    return found


def runs_of(progress: Progress) -> tuple[Run, ...]:
    """Oldest first."""
    now = progress.loader
    if now is None:
        return ()
    over = now.exhausted or 0 < now.length <= now.batches
    earlier = (Run(run.number, _place(run.site), run.batches, True) for run in progress.earlier_loaders)
    return (*earlier, Run(now.number, _place(now.site), now.batches, over))


def _place(site: tuple[Frame, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((frame.file, frame.line) for frame in site[:1])
