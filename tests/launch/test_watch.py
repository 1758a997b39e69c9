"""When the watcher looks at a job that has fallen still."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.evidence.model import Evidence, RankEvidence
from rankscope.launch import vital_signs, watch
from rankscope.launch.events import Event, Looked
from rankscope.launch.memory_track import MemoryTrack
from rankscope.launch.watch import Watcher


def test_rank_that_reaches_the_threshold_during_a_look_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stillness had been taken before; the verdict drawn from it was "possible", and the next look is far away."""
    process = SimpleNamespace(rank=0, local_rank=0, pid=1, exit=None, life_at=time.time() - 29.5, memory=MemoryTrack())
    found = [29.6, 30.4]
    looks: list[str] = []

    def gather(_trigger: str) -> Any:
        looks.append("look")
        process.life_at -= 1.0  # what a look takes
        seen = RankEvidence(0, 0, "host", process.pid, 0.0, still_for_s=found[min(len(looks), 2) - 1])
        return Evidence(1, time.time(), 0.0, "still", 1, (seen,))

    job: Any = SimpleNamespace(
        ranks=[process],
        living=lambda: [process],
        failed=list,
        gather=gather,
        nodes=None,
        attempt=0,
        page_of=lambda _process: None,
        pages_of_ranks=dict,
        stopping=False,
        stall_after_s=None,
        pump=SimpleNamespace(blocked_s=0.0, last_output_at=lambda _key: None),
    )
    pace: Any = SimpleNamespace(glance=lambda *_: None)
    seen: list[Event] = []
    watcher = Watcher(job, 30.0, pace, seen.append)
    monkeypatch.setattr(watch, "examine", lambda _evidence: SimpleNamespace(outcome="ok"))
    monkeypatch.setattr(vital_signs, "pulse", _gone)
    watcher._episode = watch._Episode(since=process.life_at, next_look=float("inf"))
    for _ in range(4):
        watcher._episode.next_look = float("inf")
        watcher._glance(time.time())
    assert len(looks) == 2
    assert [type(event) for event in seen] == [Looked, Looked]


def _gone(*_arguments: Any, **_options: Any) -> None:
    raise ProcessLookupError
