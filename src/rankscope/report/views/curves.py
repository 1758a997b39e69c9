"""Loss and the rest over the steps: curves with one common axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.evidence.curves import Curve

TITLES = {
    "loss": "Loss",
    "tokens_per_s": "Throughput, tokens/s",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
}
"""What is drawn, in this order."""
_MOST_POINTS = 1000
_MOST_MARKS = 50
_DOTS = 40


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    last: str
    line: tuple[str, ...]
    """Pieces of the curve, in a box of 1000 by 1000: it has a gap where a value was not finite."""
    dots: tuple[tuple[float, float], ...]
    """In per cent from left and top; of short runs only."""
    ticks: tuple[tuple[float, str], ...]
    """Per cent from the top, and what stands there."""
    bad: tuple[tuple[float, int], ...]
    """Per cent from the left, and the step whose value was not finite."""
    bad_count: int


@dataclass(frozen=True, slots=True)
class Panels:
    panels: tuple[Panel, ...]
    ticks: tuple[tuple[float, str], ...]
    """Of the axis that all share: per cent from the left, and the step."""


def panels_of(curves: Sequence[Curve]) -> Panels | None:
    """None where there is nothing to draw."""
    named = {curve.name: curve for curve in curves}
    drawn = [named[name] for name in TITLES if name in named and any(y is not None for _, y in named[name].points)]
    if not drawn:
        return None
    low = min(curve.points[0][0] for curve in drawn)
    high = max(low + 1, *(curve.points[-1][0] for curve in drawn))
    marks = [tick for tick in ticks(low, high, whole=True) if low <= tick <= high]
    axis = tuple((100 * (tick - low) / (high - low), label(tick)) for tick in marks)
    return Panels(tuple(_panel(curve, low, high) for curve in drawn), axis)


def _panel(curve: Curve, low: int, high: int) -> Panel:
    points = curve.points
    if curve.name == "tokens_per_s" and len(points) > 1:
        points = points[1:]  # the first step compiles and connects
    known = [(x, y) for x, y in points if y is not None]
    heights = ticks(min(y for _, y in known), max(y for _, y in known))
    bottom, top = heights[0], heights[-1]

    def across(x: float) -> float:
        return (x - low) / (high - low)

    def down(y: float) -> float:
        return (top - y) / (top - bottom)

    pieces = []
    for piece in _pieces(points):
        thin = thinned(piece)
        pieces.append(" ".join(f"{1000 * across(x):.1f},{1000 * down(y):.1f}" for x, y in thin))
    bad = [x for x, y in points if y is None]
    alone = known if len(known) <= _DOTS else [piece[0] for piece in _pieces(points) if len(piece) == 1][:_DOTS]
    return Panel(
        title=TITLES[curve.name],
        last=label(float(f"{known[-1][1]:.5g}")),
        line=tuple(pieces),
        dots=tuple((100 * across(x), 100 * down(y)) for x, y in alone),
        ticks=tuple((100 * down(tick), label(tick)) for tick in heights),
        bad=tuple((100 * across(x), x) for x in bad[:_MOST_MARKS]),
        bad_count=len(bad),
    )


def _pieces(points: Sequence[tuple[int, float | None]]) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 1,000 points, first and last among them; of each group the mean."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    size = math.ceil(len(points) / (_MOST_POINTS - 2))
    inner = points[1:-1]
    groups = [inner[at : at + size] for at in range(0, len(inner), size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [points[0], *means, points[-1]]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers around a range, four to eight of them."""
    span = high - low
    if span <= 0:
        span = abs(low) or 1.0
        low, high = low - span / 2, high + span / 2
    step = 10.0 ** math.floor(math.log10(span / 4))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if span / (step * factor) <= 6:
            step *= factor
            break
    if whole:
        step = max(1.0, round(step))
    first = math.floor(low / step)
    return [round(k * step, 12) for k in range(first, math.ceil(high / step) + 1)]


def label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.10g}"
