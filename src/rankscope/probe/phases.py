"""Where a rank's time goes: data, forward, backward, waiting for other ranks, saving."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankscope.probe.calls import SET_UP
from rankscope.probe.device_clock import DeviceClock
from rankscope.probe.page import Page
from rankscope.probe.timed import timed

DATA, FORWARD, BACKWARD, WAITING, SAVING = range(5)
_SKIPPED_STEPS = 2
"""The first steps compile, allocate and connect; they say nothing of the rhythm."""

_now = time.perf_counter


class PhaseClock:
    """Adds up seconds per phase for the thread that trains, and writes them to the page at each step."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._seconds = [0.0] * 5
        self._since = 0
        self._first_step = 0
        self._thread = 0
        self._forward_at = 0.0
        self._backward_at = 0.0
        self._reduced_from = 0.0
        self.device: DeviceClock | None = None
        """Set where the model lives on a GPU."""
        self._waited = 0.0
        """Total waiting before the current forward or backward pass began."""

    def step(self) -> None:
        """An optimizer step was made."""
        if self.device is not None:
            self._on_device(self._read_device)
        if self._since:
            self._page.phases(self._since, self._first_step, self._seconds)
        elif self._page.steps >= _SKIPPED_STEPS:
            self._since, self._first_step = time.time_ns(), self._page.steps
            self._thread = _thread.get_native_id()
            self._page.phases(self._since, self._first_step, self._seconds)

    def batch(self, seconds: float) -> None:
        """A batch came from the loader after so long."""
        if self._since:
            self._seconds[DATA] += seconds

    def forward_begins(self) -> None:
        if self.device is not None:
            self._on_device(self.device.forward_begins)
            return
        self._forward_at, self._waited = _now(), self._seconds[WAITING]

    def backward_begins(self) -> None:
        if self.device is not None:
            return
        now = _now()
        if self._since and self._forward_at:
            waited = self._seconds[WAITING] - self._waited
            self._seconds[FORWARD] += max(0.0, now - self._forward_at - waited)
        self._forward_at = 0.0
        self._backward_at, self._reduced_from, self._waited = now, 0.0, self._seconds[WAITING]

    def own_gradients_done(self) -> None:
        """The rank's own part of the backward pass is done; what is left is the reduction with the others."""
        if self.device is not None:
            self._on_device(self.device.own_gradients_done)
        self._reduced_from = _now()

    def backward_done(self) -> None:
        if self.device is not None:
            self._on_device(self.device.backward_done)
            return
        if not self._since or not self._backward_at:
            return
        now = _now()
        waited = self._seconds[WAITING] - self._waited
        own_end = self._reduced_from or now
        self._seconds[BACKWARD] += max(0.0, own_end - self._backward_at - waited)
        self._seconds[WAITING] += now - own_end
        self._backward_at = 0.0

    def _read_device(self) -> None:
        if self.device is not None:
            own, waiting = self.device.passed()
            if self._since:
                self._seconds[FORWARD] += own
                self._seconds[WAITING] += waiting

    def _on_device(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self.device = None
            self._page.error(f"timing the GPU ended: {type(error).__name__}: {error}")

    def call_left(self, op: str, seconds: float, thread: int) -> None:
        """A call into torch.distributed, made by no other such call, has returned."""
        if self._since and op != "backward" and op not in SET_UP and thread == self._thread:
            self._seconds[WAITING] += seconds

    def saved(self, seconds: float, waited_before: float) -> None:
        if self._since:
            self._seconds[SAVING] += max(0.0, seconds - (self._seconds[WAITING] - waited_before))
            self._page.phases(self._since, self._first_step, self._seconds)

    def waited(self) -> float:
        return self._seconds[WAITING]

    def watch_saving(self, *names: str) -> Callable[[ModuleType], None]:
        """A hook for a module whose functions `names` write checkpoints."""

        def wrap(module: ModuleType) -> None:
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, timed(getattr(module, name), self.waited, self._saved_guarded))

        return wrap

    def _saved_guarded(self, seconds: float, waited_before: Any) -> None:
        try:
            self.saved(seconds, waited_before)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._page.error(f"timing a save failed: {type(error).__name__}: {error}")
