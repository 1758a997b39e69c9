"""torch.profiler over a few steps of rank 0, as `profile` in the configuration asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile

from rankscope.train.config import RunConfig
from rankscope.train.place import Place


class StepProfiler:
    """A context around all steps. Nothing is recorded, and nothing costs, where profiling is off."""

    def __init__(self, config: RunConfig, place: Place, folder: Path, say: Callable[[str], None]) -> None:
        self._config = config.profile
        self._wanted = config.profile.enabled and place.rank == 0
        self._folder = folder / config.profile.dir
        self._activities = [ProfilerActivity.CPU]
        if place.device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._running: profile | None = None
        self._say = say

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def before(self, step: int) -> None:
        """Before each step: the recording begins and ends between two of them."""
        if not self._wanted:
            return
        first = self._config.first_step
        if self._running is None and step == first:
            self._running = profile(activities=self._activities)
            self._running.start()
        elif self._running is not None and step >= first + self._config.steps:
            self._end()

    def _end(self) -> None:
        if self._running is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"steps-{self._config.first_step}.json"
        self._running.export_chrome_trace(str(path))
        self._running = None
        self._say(f"profile: {path} (chrome://tracing, or ui.perfetto.dev)")
