"""What a program wrote about its steps: `logs/metrics.jsonl` of the run's folder, one JSON object a step."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.regular import leads_out, open_regular

METRICS = Path("logs") / "metrics.jsonl"
_MOST_BYTES = 64 << 20
_LONGEST_NAME = 60


class Curve(msgspec.Struct, frozen=True):
    name: str
    points: tuple[tuple[int, float | None], ...]
    """Step → value; None where it was not finite."""


def read_curves(folder: Path) -> tuple[Curve, ...]:
    """A curve for each name with numbers, in the order in which they first came; nothing where there is no such file.

    Steps that were made again after a restart count as they were made last. Lines of another form are passed over.
    """
    if leads_out(folder / METRICS, folder):
        return ()
    try:
        with open_regular(folder / METRICS) as file:
            data = file.read(_MOST_BYTES)
    except (OSError, EvidenceError):
        return ()
    found: dict[str, dict[int, float | None]] = {}
    for line in data.split(b"\n"):
        values = _object(line)
        step = values.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        for name, value in values.items():
            if name != "step" and (value is None or _is_number(value)):
                found.setdefault(name[:_LONGEST_NAME], {})[step] = _finite(value)
    return tuple(Curve(name, tuple(sorted(points.items()))) for name, points in found.items())


def _object(line: bytes) -> dict[str, object]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number - number == 0 else None
