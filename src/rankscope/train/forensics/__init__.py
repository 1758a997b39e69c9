"""Values that are not finite: noticed on the device, kept out of the weights, traced to where they began."""

from __future__ import annotations

from pathlib import Path


def replay(file: Path) -> int:
    """`rankscope train --replay-nan FILE`: runs a saved step again and names the first module whose output is not
    finite. Returns the exit code: 76 where the step is bad again, 0 where it is finite this time."""
    from rankscope.train.forensics.rebuilding import rebuilt
    from rankscope.train.forensics.replaying import replay_saved

    return replay_saved(file, rebuilt, print)
