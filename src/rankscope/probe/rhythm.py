"""What every step of training comes by: a batch, a forward and a backward pass, an optimizer step.

After some milliseconds of arithmetic nothing of Python is left in the processor's caches; each function called and
each attribute looked up then takes ten times as long as usual. Hence each event is one function here: it writes to the
page by itself, and calls others only for what is unusual.
"""

from __future__ import annotations

import _thread
import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from rankscope.probe.calls import BACKWARD, CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.first_step import FirstStep
from rankscope.probe.page import (
    CALL,
    COUNTERS,
    COUNTERS_AND_LOADER,
    COUNTERS_OFFSET,
    LOADER_EXHAUSTED,
    LOADER_GAVE,
    LOADER_WAITING,
    RING_OFFSET,
    RING_SLOTS,
    Page,
    pack_u64,
)
from rankscope.probe.phases import DATA, PhaseClock

_write_call = CALL.pack_into
_write_counters = COUNTERS.pack_into
_write_loader = COUNTERS_AND_LOADER.pack_into
_frame_of = sys._getframe
_now = time.perf_counter
_time = time.time_ns


class Rhythm:
    """Makes the functions that stand before torch's own."""

    def __init__(
        self, page: Page, calls: CallRecorder, first: FirstStep, clock: PhaseClock, finite: FiniteChecks
    ) -> None:
        self._page = page
        self._calls = calls
        self._first = first
        self._clock = clock
        self._finite = finite
        self._loaders = 0
        self._first_step = True

    def next_batch(self, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """For `__next__` of the data loaders' iterators."""
        page, first, clock, finite = self._page, self._first, self._clock, self._finite
        site_of, batches = self._calls.sites().number, finite.batches
        numbers: dict[int, int] = {}

        def __next__(iterator: Any) -> Any:
            yielded = iterator._num_yielded
            number = numbers.get(id(iterator), -1)
            if yielded == 0 or number < 0:
                numbers.clear()
                number = numbers[id(iterator)] = self._loaders
                self._loaders += 1
            workers, site, since = iterator._num_workers, site_of(_frame_of(1)), _time()
            state = (yielded, number, workers, site, LOADER_WAITING, since)
            _write_loader(page.map, COUNTERS_OFFSET, since, page.steps, page.batches, page.calls, *state)
            if not first.done_with_batches:
                first.batch_asked()
            try:
                batch = advance(iterator)
            except StopIteration:
                page.loader(yielded, number, workers, site, LOADER_EXHAUSTED)
                first.batch_came(failed=True)
                raise
            page.batches += 1
            now = _time()
            state = (yielded + 1, number, workers, site, LOADER_GAVE, now)
            _write_loader(page.map, COUNTERS_OFFSET, now, page.steps, page.batches, page.calls, *state)
            if clock.since:
                clock.seconds[DATA] += (now - since) * 1e-9
            if type(batch) is finite.tensor and not batches.keep:
                batches.fed.append((page.steps, (("batch", weakref.ref(batch)),)))
            else:
                finite.fed("batch", batch)
            if not first.done_with_batches:
                first.batch_came(failed=False)
            return batch

        return __next__

    def before_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `_pre_forward` of DistributedDataParallel."""
        page, clock, finite, batches = self._page, self._clock, self._finite, self._finite.batches

        @functools.wraps(original)
        def _pre_forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
            if clock.timed:
                clock.forward_begins()
            if kwargs or len(inputs) != 1:
                finite.fed("input", (*inputs, *kwargs.values()))
            elif type(inputs[0]) is finite.tensor and not batches.keep:
                batches.fed.append((page.steps, (("input[0]", weakref.ref(inputs[0])),)))
            else:
                finite.fed("input[0]", inputs[0])
            return original(model, *inputs, **kwargs)

        return _pre_forward

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """For the function that runs autograd's engine: recorded as a call, timed, its loss looked at."""
        page, calls, clock, finite = self._page, self._calls, self._clock, self._finite
        site_of, depths, next_call = calls.sites().number, calls.depths, page.next_call
        native_id, told_before, told_after = _thread.get_native_id, calls.told_before, calls.told_after
        name = page.text(BACKWARD)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not calls.enabled:
                return function(*args, **kwargs)
            index = -1
            try:
                if clock.timed:
                    clock.backward_begins()
                if finite.looking:
                    finite.backward_begins(args)
                for first in told_before.get(BACKWARD, ()):
                    first(args, kwargs)
                thread = native_id()
                depth = depths.get(thread, 0)
                depths[thread] = depth + 1
                site, index, now = site_of(_frame_of(1)), next(next_call), _time()
                page.calls = index + 1
                at = RING_OFFSET + (index % RING_SLOTS) * CALL.size
                _write_call(page.map, at, now, 0, 0, page.steps, name, 0, site, thread, -1, -1, 0, 0, depth, 0, 0)
                _write_counters(page.map, COUNTERS_OFFSET, now, page.steps, page.batches, index + 1)
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                calls.give_up(BACKWARD, error)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                calls.end(BACKWARD, (index, thread) if index >= 0 else None, True)
                raise
            try:
                if index >= 0:
                    depths[thread] = depth
                    now = _time()
                    if page.calls - index < RING_SLOTS:
                        pack_u64(page.map, at + 8, now)
                    pack_u64(page.map, COUNTERS_OFFSET, now)
                if clock.timed:
                    clock.backward_done()
                if not finite.replicas:
                    finite.backward_done()
                for then in told_after.get(BACKWARD, ()):
                    then(False)
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                calls.give_up(BACKWARD, error)
            return result

        return wrapper

    def after_step(self, *_arguments: Any) -> None:
        """For optimizers, when a step was made."""
        page, clock = self._page, self._clock
        page.steps += 1
        now = _time()
        _write_counters(page.map, COUNTERS_OFFSET, now, page.steps, page.batches, page.calls)
        if clock.timed:
            if self._first_step:
                self._first_step = False
                page.stage("training")
            clock.step(now)
        elif now >= clock.due:
            clock.timed = True
