"""What changed in the environment and the process group since the program started, told around its trainer."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from rankscope.probe.stages import StageBook

_before: dict[str, str] = {}


def remember() -> None:
    """What it is as the program begins."""
    _before.clear()
    _before.update(os.environ)


def tell_changes(book: StageBook, frame: FrameType | None) -> None:
    """One mark with the variables and the group state that are not what they were; none where nothing changed."""
    from rankscope.process_status import NAMES, PREFIXES, relevant, status

    now = {name: value for name, value in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    changed = {name: value for name, value in now.items() if _before.get(name) != value}
    parts = [f"{name}={value}" for name, value in relevant(changed).items()]
    parts += [f"{name} unset" for name in _before if (name in NAMES or name.startswith(PREFIXES)) and name not in now]
    group = status().group
    state = f"process group {group.backend}" if group.initialized else "no process group"
    if _before.get("process group", "no process group") != state:
        parts.append(state)
    if parts:
        book.mark("Environment changed", "status", frame, note=", ".join(parts)[:2000], always=True)
    for name in [name for name in _before if name not in os.environ]:
        del _before[name]
    _before.update(os.environ)
    _before["process group"] = state


def tell_changes_after(book: StageBook, _result: Any) -> None:
    tell_changes(book, None)
