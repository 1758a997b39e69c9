"""torch.profiler over a few steps of rank 0, as `profile` in the configuration asks."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile

from rankscope.train.config import RunConfig
from rankscope.train.place import Place


class StepProfiler:
    """A context around all steps. Nothing is recorded, and nothing costs, where profiling is off."""

    def __init__(self, config: RunConfig, place: Place, folder: Path) -> None:
        self._config = config.profile
        self._wanted = config.profile.enabled and place.rank == 0
        self._folder = folder / config.profile.dir
        self._activities = [ProfilerActivity.CPU]
        if place.device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._running: profile | None = None
        self.written: Path | None = None

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def step(self, step: int) -> None:
        """After each step."""
        if not self._wanted:
            return
        if self._running is None and step + 1 == self._config.first_step:
            self._running = profile(activities=self._activities)
            self._running.start()
        elif self._running is not None and step + 1 >= self._config.first_step + self._config.steps:
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
        self._running, self.written = None, path
