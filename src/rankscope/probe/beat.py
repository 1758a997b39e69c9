"""What the functions that every step of training comes by share.

Where `native/quick.c` was compiled for this Python, the state lives there, and shortcuts stand before those functions.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from types import ModuleType
from typing import Any, cast

from rankscope.probe.batches import MOST_TENSORS
from rankscope.probe.page import (
    CALL_WORDS,
    COUNTERS_WORD,
    LOADER_GAVE,
    LOADER_WAITING,
    LOADER_WORD,
    RING_SLOTS,
    RING_WORD,
    Page,
)
from rankscope.probe.replicas import CHECKSUM_EVERY
from rankscope.probe.shortcuts import quick
from rankscope.probe.sites import NOWHERE, Place

Reference = weakref.ref[Any]


class Beat:
    """The state in Python."""

    def __init__(self) -> None:
        self.full = True
        """Whether this step is watched in full, its passes timed. Of steps that follow each other fast only some are;
        each stands for those before it."""
        self.due = 0
        """From when on the next step is to be watched in full."""
        self.data_ns = 0
        """Waited for batches since the last step that was watched in full."""
        self.optimizer = 0
        """Identity of the one whose step was looked at last."""
        self.loader = 0
        """Identity of the iterator that gave the last batch; then its number, with that of its workers in the upper
        half, as on the page, and the site that asks it."""
        self.loader_number = 0
        self.loader_site = 0
        self.deferring = False
        """Losses are looked at together with the own gradient: what the one loads into the caches the other finds."""
        self.batch: Reference | tuple[Reference, ...] | None = None
        """The batch that came last in a step that is not watched in full: a tensor, or a sequence of tensors."""
        self.batch_step = 0
        self.losses: tuple[Any, ...] | None = None
        """The arguments of a backward pass whose loss is still to be looked at."""
        self.inputs: tuple[Any, ...] = ()
        """Of the model called last, where losses are looked at late: a backward pass lets go of those that the program
        itself does not keep."""
        self.kept: deque[tuple[int, tuple[Any, ...]]] = deque(maxlen=0)
        """Steps and inputs of the passes before; as many as `hold` says."""
        self.place: Place = NOWHERE
        """Where the last backward pass came from."""

    def hold(self, passes: int) -> None:
        """The inputs of so many passes are kept alive from now on."""
        if passes != self.kept.maxlen:
            self.kept = deque(self.kept, maxlen=passes)

    def pass_over(self, step: int) -> None:
        """The inputs of the pass have been used, in that step."""
        if self.inputs:
            self.kept.append((step, self.inputs))
            self.inputs = ()

    def use(self, page: mmap.mmap) -> None:
        """Shortcuts write to this page from now on."""

    def watch(self, torch: ModuleType) -> None:
        """Shortcuts know torch's tensors from now on."""


def beat_of(page: Page) -> Beat:
    """The state of this process, with shortcuts where there are any."""
    if quick is None:
        return Beat()
    beat = quick.Beat(
        counters=COUNTERS_WORD,
        loader=LOADER_WORD,
        ring=RING_WORD,
        slots=RING_SLOTS,
        call_words=CALL_WORDS,
        most_tensors=MOST_TENSORS,
        checksum_every=CHECKSUM_EVERY,
        waiting=LOADER_WAITING << 32,
        gave=LOADER_GAVE << 32,
    )
    beat.place = NOWHERE
    page.follow(beat.use)
    return cast(Beat, beat)


def has_shortcuts(beat: Beat) -> bool:
    return type(beat) is not Beat
