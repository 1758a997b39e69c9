"""Notes of values that stopped being finite, left on the rank's page for the launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from rankscope.probe.page import own_pages
from rankscope.probe.sites import user_frames

Kind = Literal["input", "loss", "gradient", "parameter"]


def note_non_finite(
    kind: Kind,
    *,
    step: int,
    tensors: Sequence[str] = (),
    value: str = "nan",
    local: bool = True,
    detail: str = "",
) -> bool:
    """Tells the launcher that a value of this rank is not finite; the verdict becomes `nan`, cause `nan-<kind>`.

    `step` counts the optimizer steps made before the one concerned. `tensors` are names, the first bad one first.
    `local`: seen before any reduction, so it began on this rank. `detail` is a sentence for the report. The caller's
    line is kept. A program that ends because of it should exit with code 76. False where no launcher watches.
    """
    if not own_pages:
        return False
    frames = user_frames(sys._getframe(1))
    own_pages[0].non_finite(
        kind, step, value, list(tensors[:16]), len(tensors), local=local, detail=detail, frames=frames
    )
    return True
