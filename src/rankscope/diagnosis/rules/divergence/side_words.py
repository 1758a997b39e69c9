"""What the ranks of one side of a divergence called, in words that tell it from what the others called."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.timeline import ROOTED, SIZED


def side_text(side: Side, divergence: Divergence) -> str:
    """`ranks 0, 1 called broadcast of 5 elements at share (train.py:9)`, with whatever tells the sides apart."""
    if side.event is None:
        return f"{views.ranks_text(side.ranks)} did not make it"
    at = (views.place(views.where(side.site[0])) if side.site else views.NO_LINE) + _called_from(side, divergence)
    size = f" of {side.event.numel} element{'s' if side.event.numel > 1 else ''}" if side.event.numel > 0 else ""
    step = f", after step {side.event.step}" if side.event.step > 0 else ""
    return f"{views.ranks_text(side.ranks)} called {side.event.op}{size}{_odd_part(side, divergence)} at {at}{step}"


def _odd_part(side: Side, divergence: Divergence) -> str:
    """The root and the dtype, where these are what the ranks do not agree on."""
    assert side.event is not None
    alike = [other.event for other in divergence.sides if other.event is not None and other.event.op == side.event.op]
    roots = {event.root for event in alike} if side.event.op in ROOTED else set()
    types = {event.dtype for event in alike} if side.event.op in SIZED else set()
    dtype = f" of {side.event.dtype}" if len(types) > 1 and side.event.dtype else ""
    return dtype + (f" with root {side.event.root}" if len(roots) > 1 and side.event.root >= 0 else "")


def _called_from(side: Side, divergence: Divergence) -> str:
    """Where the sides stand on one line, as in a model's forward: the innermost line on which they differ."""
    for other in divergence.sides:
        if other is side or other.site[:1] != side.site[:1]:
            continue
        parted = next((mine for mine, theirs in zip(side.site, other.site, strict=False) if mine != theirs), None)
        if parted is not None:
            return f", called from {views.place(views.where(parted))}"
    return ""
