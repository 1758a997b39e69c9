"""How long properties are searched for a counter-example: the same examples every time, or, with RANKSCOPE_SEARCH=N in
the environment, N times as many new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("RANKSCOPE_SEARCH", "0"))

settings.register_profile(
    "rankscope",
    max_examples=100 * max(1, _TIMES),
    deadline=None,
    derandomize=not _TIMES,
    suppress_health_check=list(HealthCheck),  # a busy machine is no fault of a test
)
settings.load_profile("rankscope")


def searched(examples: int) -> settings:
    return settings(max_examples=examples * max(1, _TIMES))
