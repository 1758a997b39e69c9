"""Where a rank's time goes: data, forward, backward, waiting for other ranks, saving."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankscope.probe.beat import beat_of
from rankscope.probe.calls import SET_UP
from rankscope.probe.device_clock import DeviceClock
from rankscope.probe.page import Page
from rankscope.probe.timed import timed

DATA, FORWARD, BACKWARD, WAITING, SAVING = range(5)
_SKIPPED_STEPS = 2
"""The first steps compile, allocate and connect; they say nothing of the rhythm."""

_LONG_STEP_NS = 50_000_000
"""A step that takes this long does not notice what watching it in full costs."""
_PAUSE_NS = 500_000_000
"""Between two shorter steps that are watched in full."""

_now = time.perf_counter


class PhaseClock:
    """Adds up seconds per phase for the thread that trains, and writes them to the page at each step."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.beat = beat_of(page)
        self.seconds = [0.0] * 5
        self.since = 0
        """When counting began; 0 before."""
        self._step_ended = 0
        self._timed_step = 0
        self._first_step = 0
        self._thread = 0
        self._forward_at = 0.0
        self._backward_at = 0.0
        self._reduced_from = 0.0
        self._waited = 0.0
        """Total waiting before the current forward or backward pass began."""
        self._passes = [0.0, 0.0, 0.0]
        """Seconds of this step: forward, backward, the reduction of gradients."""
        self.device: DeviceClock | None = None
        """Set where the model lives on a GPU."""

    def step(self, now: int) -> bool:
        """A step that was watched in full has been made, at that time (ns). Whether the next one is to be, too."""
        steps, beat = self._page.steps, self.beat
        self.seconds[DATA] += beat.data_ns * 1e-9 if self.since else 0.0
        beat.data_ns = 0
        if self.device is not None:
            self._on_device(self._read_device)
        long = now - self._step_ended >= _LONG_STEP_NS * max(1, steps - self._timed_step)
        if self.since and self.device is None and not long and not any(self._passes):
            # Watched from its middle on only, or a second optimizer's for the same passes: it stands for no other step,
            # and one that does is as due as before.
            self._page.phases(self.since, self._first_step, self.seconds)
            beat.full = now >= beat.due
            return beat.full
        if self.since:
            stands_for = float(steps - self._timed_step)
            whole = sum(self._passes)
            if whole * stands_for * 1e9 > now - self._step_ended:
                # A single long step: those before it were not like it, or more time would have passed.
                stands_for = max(1.0, (now - self._step_ended) / (whole * 1e9))
            for phase, seconds in zip((FORWARD, BACKWARD, WAITING), self._passes, strict=True):
                self.seconds[phase] += seconds * stands_for
            self._page.phases(self.since, self._first_step, self.seconds)
        elif steps >= _SKIPPED_STEPS:
            self.since, self._first_step = now, steps
            self._thread = _thread.get_native_id()
            self._page.phases(self.since, self._first_step, self.seconds)
        self._passes = [0.0, 0.0, 0.0]
        self._timed_step = steps
        beat.full = not self.since or self.device is not None or long
        self._step_ended = now
        beat.due = now + _PAUSE_NS
        return beat.full

    def forward_begins(self) -> None:
        if self.device is not None:
            self._on_device(self.device.forward_begins)
            return
        self._forward_at, self._waited = _now(), self.seconds[WAITING]

    def backward_begins(self) -> None:
        if self.device is not None:
            return
        now = self._backward_at = _now()
        waiting = self.seconds[WAITING]
        if self._forward_at:
            self._passes[0] += max(0.0, now - self._forward_at - waiting + self._waited)
            self._forward_at = 0.0
        self._reduced_from = 0.0
        self._waited = waiting

    def own_gradients_done(self) -> None:
        """The rank's own part of the backward pass is done; what is left is the reduction with the others."""
        if self.device is not None:
            self._on_device(self.device.own_gradients_done)
        self._reduced_from = _now()

    def backward_done(self) -> None:
        if self.device is not None:
            self._on_device(self.device.backward_done)
            return
        if not self._backward_at:
            return
        now = _now()
        own_end = self._reduced_from or now
        waited = self.seconds[WAITING] - self._waited
        self._passes[1] += max(0.0, own_end - self._backward_at - waited)
        self._passes[2] += now - own_end
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
            self._page.phases(self.since, self._first_step, self.seconds)

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
