"""What every step of training comes by: a batch, a forward and a backward pass, an optimizer step.

After some milliseconds of arithmetic nothing of Python is left in the processor's caches; each function called and
each attribute looked up then takes ten times as long as usual. Hence each event is one function here: it writes to the
page by itself, and calls others only for what is unusual. Of fast steps only some are watched in full (`Beat.full`); of
the others just what must be known of every step is written. Where there are shortcuts (`native/quick.c`), they do that,
and the functions here the rest.
"""

from __future__ import annotations

import _thread
import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from rankscope.probe.batches import MOST_TENSORS
from rankscope.probe.beat import has_shortcuts
from rankscope.probe.calls import BACKWARD, CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.first_step import FirstStep
from rankscope.probe.kept_files import kept, mind_all
from rankscope.probe.page import (
    CALL_WORDS,
    COUNTERS_WORD,
    LOADER_EXHAUSTED,
    LOADER_GAVE,
    LOADER_WAITING,
    LOADER_WORD,
    RING_SLOTS,
    RING_WORD,
    Page,
)
from rankscope.probe.phases import PhaseClock
from rankscope.probe.replicas import CHECKSUM_EVERY
from rankscope.probe.shortcuts import quick

_CHANGED, _STEPS, _BATCHES, _CALLS = range(COUNTERS_WORD, COUNTERS_WORD + 4)
_LOADER_BATCHES, _LOADER_NUMBER, _LOADER_STATE, _LOADER_TIME = range(LOADER_WORD, LOADER_WORD + 4)
_WAITING, _GAVE = LOADER_WAITING << 32, LOADER_GAVE << 32
# The parts of a call's record that are the same for all backward passes: no peer, no tensor.
_MIND_FILES_NS = 1_000_000_000
_NO_PEER, _NO_TENSOR = 2**64 - 1, 2**32 - 1
_frame_of = sys._getframe
_reference = weakref.ref
_thread_number = _thread.get_native_id
_time = time.time_ns


def _as_method(shortcut: Callable[[Any], Any], like: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function in Python: torch's compiler calls no other kind of method with its instance."""

    @functools.wraps(like)
    def method(instance: Any) -> Any:
        return shortcut(instance)

    return method


def _length(iterator: Any) -> int:
    """Batches that a loader's iterator gives in all; -1 where it does not know."""
    try:
        return len(iterator)
    except (TypeError, NotImplementedError):
        return -1


def _guarded_minding(page: Page) -> None:
    try:
        mind_all()
    except OSError as error:
        kept.clear()
        page.error(f"the files of stacks were closed and could not be opened again: {error}")


class Rhythm:
    """Makes the functions that stand before torch's own."""

    def __init__(
        self, page: Page, calls: CallRecorder, first: FirstStep, clock: PhaseClock, finite: FiniteChecks
    ) -> None:
        self._page = page
        self._calls = calls
        self._first = first
        self._clock = clock
        self._beat = clock.beat
        self._finite = finite
        self._loaders = 0

    def next_batch(self, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """For `__next__` of the data loaders' iterators."""
        page, first, beat, finite = self._page, self._first, self._beat, self._finite
        find_site = self._calls.sites().number

        def exhausted(iterator: Any, yielded: int) -> None:
            beat.loader_site = find_site(_frame_of(1))
            number, workers = beat.loader_number % 2**32, iterator._num_workers
            page.loader(yielded, number, workers, beat.loader_site, LOADER_EXHAUSTED)
            first.batch_came(failed=True)

        @functools.wraps(advance)
        def __next__(iterator: Any) -> Any:
            yielded = iterator._num_yielded
            if beat.full or yielded == 0 or beat.loader != id(iterator):
                # A loop asks one iterator from one line; where it does not, the stack tells the line of the moment.
                begins = yielded == 0 or beat.loader != id(iterator)
                beat.loader_site = find_site(_frame_of(1))
                if begins:
                    beat.loader, beat.loader_number = id(iterator), self._loaders | iterator._num_workers << 32
                    page.loader_begun(self._loaders, _length(iterator), beat.loader_site)
                    self._loaders += 1
            words, since = page.words, _time()
            words[_LOADER_TIME] = words[_CHANGED] = since
            words[_LOADER_BATCHES] = yielded
            words[_LOADER_NUMBER] = beat.loader_number
            words[_LOADER_STATE] = beat.loader_site | _WAITING
            if yielded == 0 and not first.done_with_batches:
                first.batch_asked()
            try:
                batch = advance(iterator)
            except StopIteration:
                exhausted(iterator, yielded)
                raise
            now = _time()
            words = page.words
            words[_LOADER_TIME] = words[_CHANGED] = now
            words[_BATCHES] += 1
            words[_LOADER_BATCHES] = yielded + 1
            words[_LOADER_STATE] = beat.loader_site | _GAVE
            beat.data_ns += now - since
            kind = type(batch)
            if kind is finite.tensor and not beat.full:
                beat.batch, beat.batch_step = _reference(batch), words[_STEPS]
            elif (kind is list or kind is tuple) and not beat.full:
                try:
                    beat.batch, beat.batch_step = tuple(map(_reference, batch[:MOST_TENSORS])), words[_STEPS]
                except TypeError:  # not all are tensors
                    finite.fed("batch", batch)
            else:
                finite.fed("batch", batch)
            if yielded == 0 and not first.done_with_batches:
                first.batch_came(failed=False)
            return batch

        if not has_shortcuts(beat):
            return __next__
        return _as_method(quick.next_batch(beat, __next__, advance, exhausted, finite.fed), advance)

    def before_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `_pre_forward` of DistributedDataParallel."""
        clock, beat, finite = self._clock, self._beat, self._finite

        def fed(inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs:
                inputs = (*inputs, *kwargs.values())
            if beat.full:
                clock.forward_begins()
                finite.model_fed(inputs)
            elif beat.inputs:  # of another pass since the last step
                finite.fed("input", beat.inputs)
            if beat.deferring:
                beat.inputs = inputs

        feed = quick.fed(beat, fed) if has_shortcuts(beat) else fed

        @functools.wraps(original)
        def _pre_forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
            feed(inputs, kwargs)
            return original(model, *inputs, **kwargs)

        return _pre_forward

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: PLR0915  one function per event
        """For the function that runs autograd's engine: recorded as a call, timed, its loss looked at."""
        page, calls, clock, beat, finite = self._page, self._calls, self._clock, self._beat, self._finite
        place, next_call = calls.sites().place, page.next_call
        depths = calls.depths
        deeper, shallower = depths.deeper, depths.shallower
        told_before = calls.told_before
        name = page.text(BACKWARD)

        def failed(index: int, thread: int) -> None:
            calls.end(BACKWARD, (index, thread) if index >= 0 else None, True)
            finite.backward_failed()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: PLR0912, PLR0915  one function per event
            if not calls.enabled:
                return function(*args, **kwargs)
            index, thread = -1, 0
            try:
                if beat.full:
                    clock.backward_begins()
                    if beat.deferring and beat.losses is None and finite.suspicion is None:
                        beat.losses = args
                    elif finite.looking:
                        finite.backward_begins(args)
                    if calls.backward_heard:
                        for first in told_before.get(BACKWARD, ()):
                            first(args, kwargs)
                elif beat.losses is None:
                    beat.losses = args
                else:
                    finite.backward_begins(args)
                # The number of the system: Python's own name of a thread is given to the next one after its end.
                thread = _thread_number()
                depth = deeper()
                site, above, code, lasti, between, outer_code, outer_lasti = beat.place
                try:
                    frame = _frame_of(above + 1)
                except ValueError:
                    frame = _frame_of(0)
                outer = frame.f_back
                while between and outer is not None:
                    outer, between = outer.f_back, between - 1
                if (
                    between
                    or frame.f_code is not code
                    or frame.f_lasti != lasti
                    or (outer_code is not None if outer is None else outer.f_code is not outer_code)
                    or (outer is not None and outer.f_lasti != outer_lasti)
                ):
                    beat.place = found = place(_frame_of(1))
                    site = found[0]
                index, now = next(next_call), _time()
                words, at = page.words, RING_WORD + index % RING_SLOTS * CALL_WORDS
                words[at] = now
                words[at + 1] = words[at + 2] = 0
                words[at + 3] = words[_STEPS]
                words[at + 4] = name
                words[at + 5] = site | thread << 32
                words[at + 6] = _NO_PEER
                words[at + 7] = _NO_TENSOR
                words[at + 8] = depth << 32
                words[_CALLS] = index + 1
                words[_CHANGED] = now
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                calls.give_up(BACKWARD, error)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                failed(index, thread)
                raise
            try:
                if index >= 0:
                    shallower()
                    words, now = page.words, _time()
                    if words[_CALLS] - index < RING_SLOTS:
                        words[at + 1] = now
                    words[_CHANGED] = now
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                calls.give_up(BACKWARD, error)
            if beat.full or beat.losses is args:
                done(args)
            return result

        done = self._backward_done
        if not (has_shortcuts(beat) and isinstance(depths, quick.Depths)):
            return wrapper
        shortcut = quick.backward(beat, wrapper, function, done, failed, next_call, depths, name)
        return functools.update_wrapper(shortcut, function)

    def _backward_done(self, args: tuple[Any, ...]) -> None:
        """A pass with these arguments has ended, and its losses are still to be looked at, or all is."""
        finite, calls, own = self._finite, self._calls, self._beat.losses is args
        try:
            if not self._beat.full:
                finite.backward_done()
                return
            self._clock.backward_done()
            if own or not finite.replicas:  # not the losses of the pass that this one is a part of
                finite.backward_done()
            if calls.backward_heard:
                for then in calls.told_after.get(BACKWARD, ()):
                    then(False)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            calls.give_up(BACKWARD, error)

    def before_step(self) -> Callable[..., None]:
        """For optimizers, when a step is about to be made."""
        step_begins: Callable[..., None] = self._finite.step_begins
        return quick.step_begins(self._beat, step_begins) if has_shortcuts(self._beat) else step_begins

    def after_step(self) -> Callable[..., None]:
        """For optimizers, when a step was made."""
        page, clock, beat, known, unusual = self._page, self._clock, self._beat, self._finite.optimizers, self._unusual
        first_step, mind_at = True, 0

        def after_step(optimizer: Any, *_arguments: Any) -> None:
            nonlocal first_step, mind_at
            words, now = page.words, _time()
            steps = words[_STEPS] = words[_STEPS] + 1
            words[_CHANGED] = now
            if beat.full:
                if first_step:
                    first_step = False
                    page.stage("training")
                if now >= mind_at:
                    mind_at = now + _MIND_FILES_NS
                    _guarded_minding(page)
                if not clock.step(now):
                    beat.full = unusual(optimizer)
            elif now >= beat.due or steps % CHECKSUM_EVERY == 0 or id(optimizer) not in known:
                beat.full = True
            beat.optimizer = id(optimizer) if id(optimizer) in known else 0

        return quick.step_done(beat, after_step) if has_shortcuts(beat) else after_step

    def _unusual(self, optimizer: Any) -> bool:
        """Something about the steps must be looked at in full."""
        return (
            self._calls.backward_heard
            or not self._calls.enabled
            or self._page.steps % CHECKSUM_EVERY == 0
            or not self._finite.may_pass(optimizer)
        )
