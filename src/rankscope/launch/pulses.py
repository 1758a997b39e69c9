"""Whether a process did anything between two pulses."""

from __future__ import annotations

from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S
from rankscope.evidence.procfs import Pulse

_GROWTH_BYTES = 1 << 20


def computed(before: Pulse, after: Pulse, seconds: float) -> bool:
    """It took processor time, in the seconds between the two. Whoever waits for a GPU does that too."""
    return (after.cpu_s - before.cpu_s) / seconds >= LIFE_CPU_SHARE


def moved(before: Pulse, after: Pulse, seconds: float) -> bool:
    """It moved bytes or took memory."""
    return (
        (after.io_bytes - before.io_bytes) / seconds >= LIFE_IO_BYTES_PER_S
        or after.rss_bytes - before.rss_bytes >= _GROWTH_BYTES
        or _carried(before, after) / seconds >= LIFE_IO_BYTES_PER_S
    )


def _carried(before: Pulse, after: Pulse) -> int:
    """Through TCP connections; 0 where it is not known of both moments."""
    if before.network_bytes is None or after.network_bytes is None:
        return 0
    return after.network_bytes - before.network_bytes
