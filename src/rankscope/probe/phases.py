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
        self.seconds = [0.0] * 5
        self.since = 0
        """When counting began; 0 before."""
        self.first_step = 0
        self._thread = 0
        self.forward_at = 0.0
        self._backward_at = 0.0
        self.reduced_from = 0.0
        self.device: DeviceClock | None = None
        """Set where the model lives on a GPU."""
        self.waited_before = 0.0
        """Total waiting before the current forward or backward pass began."""

    def step(self) -> None:
        """An optimizer step was made."""
        if self.device is not None:
            self._on_device(self._read_device)
        if self.since:
            self._page.phases(self.since, self.first_step, self.seconds)
        elif self._page.steps >= _SKIPPED_STEPS:
            self.since, self.first_step = time.time_ns(), self._page.steps
            self._thread = _thread.get_native_id()
            self._page.phases(self.since, self.first_step, self.seconds)

    def batch(self, seconds: float) -> None:
        """A batch came from the loader after so long."""
        if self.since:
            self.seconds[DATA] += seconds

    def forward_begins(self) -> None:
        if self.device is not None:
            self._on_device(self.device.forward_begins)
            return
        self.forward_at, self.waited_before = _now(), self.seconds[WAITING]

    def backward_begins(self, *_call: object) -> None:
        if self.device is not None:
            return
        now = self._backward_at = _now()
        waiting = self.seconds[WAITING]
        if self.forward_at:
            own = now - self.forward_at - waiting + self.waited_before
            if self.since and own > 0.0:
                self.seconds[FORWARD] += own
            self.forward_at = 0.0
        self.reduced_from = 0.0
        self.waited_before = waiting

    def own_gradients_done(self) -> None:
        """The rank's own part of the backward pass is done; what is left is the reduction with the others."""
        if self.device is not None:
            self._on_device(self.device.own_gradients_done)
        self.reduced_from = _now()

    def backward_done(self, failed: bool = False) -> None:
        if failed:
            return
        if self.device is not None:
            self._on_device(self.device.backward_done)
            return
        if not self.since or not self._backward_at:
            return
        now = _now()
        waited = self.seconds[WAITING] - self.waited_before
        own_end = self.reduced_from or now
        own = own_end - self._backward_at - waited
        if own > 0.0:
            self.seconds[BACKWARD] += own
        self.seconds[WAITING] += now - own_end
        self._backward_at = 0.0

    def _read_device(self) -> None:
        if self.device is not None:
            own, waiting = self.device.passed()
            if self.since:
                self.seconds[FORWARD] += own
                self.seconds[WAITING] += waiting

    def _on_device(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self.device = None
            self._page.error(f"timing the GPU ended: {type(error).__name__}: {error}")

    def call_left(self, op: str, seconds: float, thread: int) -> None:
        """A call into torch.distributed, made by no other such call, has returned."""
        if self.since and op not in SET_UP and thread == self._thread:
            self.seconds[WAITING] += seconds

    def saved(self, seconds: float, waited_before: float) -> None:
        if self.since:
            self.seconds[SAVING] += max(0.0, seconds - (self.seconds[WAITING] - waited_before))
            self._page.phases(self.since, self.first_step, self.seconds)

    def waited(self) -> float:
        return self.seconds[WAITING]

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
