"""Loss and throughput of a run as pictures: report.html with the curves inside it, and loss.png."""

from __future__ import annotations

import html
import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.train.config import RunConfig
from rankscope.train.metrics import StepRecord

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 36
_MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Curve:
    title: str
    unit: str
    points: tuple[tuple[float, float], ...]


def draw(records: Sequence[StepRecord], config: RunConfig, folder: Path) -> list[str]:
    """Writes the pictures; returns what to say about them."""
    curves = curves_of(records)
    page = folder / "report.html"
    page.write_text(render_html(curves, records, config), encoding="utf-8")
    said = [f"report: {page}"]
    if importlib.util.find_spec("matplotlib") is not None:
        picture = folder / "loss.png"
        _draw_png(curves, picture)
        said.append(f"picture: {picture}")
    return said


def curves_of(records: Sequence[StepRecord]) -> list[Curve]:
    """The first step is left out of the throughput: it compiles and connects."""
    timed = records[1:] if len(records) > 1 else records
    found = [
        Curve("Loss", "", tuple((r.step, r.loss) for r in records if r.loss is not None)),
        Curve("Throughput", "tokens/s", tuple((r.step, r.tokens_per_s) for r in timed)),
        Curve("Gradient norm", "", tuple((r.step, r.grad_norm) for r in records if r.grad_norm is not None)),
        Curve("Learning rate", "", tuple((r.step, r.learning_rate) for r in records)),
    ]
    return [curve for curve in found if curve.points]


def render_html(curves: Sequence[Curve], records: Sequence[StepRecord], config: RunConfig) -> str:
    """A page that needs nothing else: no script, no network."""
    last = records[-1]
    model = config.model
    mfu = "unknown" if last.mfu is None else f"{100 * last.mfu:.1f} %"
    facts = {
        "steps": f"{last.step + 1} of {config.training.max_steps}",
        "model": f"{model.layers} layers, width {model.width}, context {model.context_length}",
        "last loss": "not finite" if last.loss is None else f"{last.loss:.4f}",
        "last step": f"{last.step_s * 1000:.1f} ms, {last.tokens_per_s:,.0f} tokens/s, MFU {mfu}",
        "tokens": f"{last.tokens:,}",
        "steps not applied": str(sum(not record.finite for record in records)),
    }
    rows = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items())
    figures = "".join(
        f"<figure><figcaption>{html.escape(curve.title)}{f' ({html.escape(curve.unit)})' if curve.unit else ''}"
        f"</figcaption>{render_svg(curve)}</figure>"
        for curve in curves
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Training run</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --ink: #1c1c1c; --faint: #d9d9d9; --paper: #fff; --line: #1f6feb; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --faint: #3a3a3a; --paper: #161616; --line: #58a6ff; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 760px; padding: 0 1rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }}
dt {{ opacity: .65; }} dd {{ margin: 0; }} figure {{ margin: 1.5rem 0; }} figcaption {{ font-weight: 600; }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: var(--ink); font-size: 12px; }}
.grid {{ stroke: var(--faint); }} .curve {{ stroke: var(--line); fill: none; stroke-width: 1.6; }}
.dot {{ fill: var(--line); }}
</style></head><body><h1>Training run</h1><dl>{rows}</dl>{figures}</body></html>
"""


def render_svg(curve: Curve) -> str:
    points = thinned(curve.points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks, y_ticks = ticks(xs[0], xs[-1], whole=True), ticks(min(ys), max(ys))
    low_x, high_x = xs[0], max(xs[-1], xs[0] + 1)
    low_y, high_y = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x)
        up = (y - low_y) / (high_y - low_y)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(curve.title)}">']
    for tick in y_ticks:
        _, y = place(low_x, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>')
    for tick in x_ticks:
        if low_x <= tick <= high_x:
            x, _ = place(tick, low_y)
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{label(tick)}</text>')
    placed = [place(x, y) for x, y in points]
    parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}"/>')
    if len(placed) <= 40:
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in placed]
    return "".join(parts) + "</svg>"


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 2,000 points, first and last among them; of each group the mean."""
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


def _draw_png(curves: Sequence[Curve], path: Path) -> None:
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    shown = curves[:2]
    figure, axes = pyplot.subplots(
        len(shown), 1, figsize=(8, 3 * len(shown)), squeeze=False, sharex=True, layout="constrained"
    )
    for axis, curve in zip(axes[:, 0], shown, strict=True):
        points = thinned(curve.points)
        axis.plot(
            [x for x, _ in points], [y for _, y in points], marker="o" if len(points) <= 40 else None, markersize=3
        )
        axis.set_title(curve.title)
        axis.set_ylabel(curve.unit)
        axis.grid(alpha=0.3)
        axis.yaxis.set_major_formatter(lambda value, _position: label(value))
    axes[-1, 0].set_xlabel("step")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
