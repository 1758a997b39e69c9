"""What counts as life between two pulses of a process."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S
from rankscope.evidence.procfs import Pulse
from rankscope.launch.pulses import computed, moved

STILL = Pulse("S", cpu_s=10.0, io_bytes=5000, rss_bytes=1 << 30, network_bytes=900)
SECONDS = 2.0


def worked(before: Pulse, after: Pulse, seconds: float) -> bool:
    return computed(before, after, seconds) or moved(before, after, seconds)


def test_nothing_and_next_to_nothing_is_no_life() -> None:
    assert not worked(STILL, STILL, SECONDS)
    barely = replace(STILL, cpu_s=10.0 + 0.5 * LIFE_CPU_SHARE * SECONDS, rss_bytes=STILL.rss_bytes + 4096)
    assert not worked(STILL, barely, SECONDS)
    assert not worked(STILL, replace(STILL, rss_bytes=STILL.rss_bytes - (8 << 20)), SECONDS), "memory given back"


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_s": 10.0 + 1.1 * LIFE_CPU_SHARE * SECONDS},
        {"io_bytes": 5000 + int(LIFE_IO_BYTES_PER_S * SECONDS) + 1},
        {"network_bytes": 900 + int(LIFE_IO_BYTES_PER_S * SECONDS) + 1},
        {"rss_bytes": (1 << 30) + (1 << 20)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_processor_bytes_connections_and_memory_are_signs_of_life(change: dict[str, float]) -> None:
    assert worked(STILL, replace(STILL, **change), SECONDS)


def test_connections_that_were_not_asked_for_before_are_no_sign() -> None:
    assert not worked(replace(STILL, network_bytes=None), replace(STILL, network_bytes=1 << 40), SECONDS)
