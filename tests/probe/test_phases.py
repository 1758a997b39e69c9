"""Where a rank's time goes is added up per phase, and read off its page."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankscope.evidence.model import Phases
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.probe import phases as phases_module
from rankscope.probe import timed as timed_module
from rankscope.probe.device_clock import DeviceClock
from rankscope.probe.page import Page
from rankscope.probe.phases import DATA, PhaseClock


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(phases_module, "_now", clock)
    monkeypatch.setattr(timed_module, "_now", clock)
    return clock


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), 0)


def step(page: Page, clock: PhaseClock, at_ms: int = 0) -> None:
    page.step()
    clock.step(1 + at_ms * 1_000_000)


def started(page: Page) -> PhaseClock:
    clock = PhaseClock(page)
    for _ in range(2):
        step(page, clock)
    return clock


def read(page: Page) -> Phases:
    found = read_heartbeat(Path(page.path)).phases
    assert found is not None
    return found


def test_nothing_is_counted_before_the_second_step(page: Page) -> None:
    clock = PhaseClock(page)
    clock.call_left("all_reduce", 5.0, clock._thread)
    step(page, clock)
    assert read_heartbeat(Path(page.path)).phases is None


def test_pass_is_split_into_forward_backward_and_waiting(page: Page, time: Time) -> None:
    clock = started(page)
    clock.seconds[DATA] += 0.5
    clock.forward_begins()
    time.now += 2.0
    clock.call_left("all_gather", 0.25, clock._thread)
    clock.backward_begins()
    time.now += 3.0
    clock.own_gradients_done()
    time.now += 4.0
    clock.backward_done()
    clock.call_left("barrier", 1.0, clock._thread)
    step(page, clock)
    seen = read(page)
    assert (seen.data_s, seen.forward_s, seen.backward_s, seen.waiting_s) == (0.5, 1.75, 3.0, 5.25)
    assert seen.first_step == 2
    assert read_page(Path(page.path)).progress.phases == seen


def in_full(clock: PhaseClock) -> bool:
    return clock.beat.full


def test_of_fast_steps_some_are_timed_and_stand_for_those_before_them(page: Page, time: Time) -> None:
    clock = started(page)
    step(page, clock, 5)
    assert not clock.beat.full
    for _ in range(4):
        page.step()
    clock.beat.full = True
    clock.backward_begins()
    time.now += 0.0078125
    clock.backward_done()
    step(page, clock, 60)
    assert read(page).backward_s == 6 * 0.0078125
    assert not clock.beat.full  # eleven milliseconds each
    step(page, clock, 120)
    assert in_full(clock), "a step that took this long can bear it"
    step(page, clock, 125)
    assert not in_full(clock)


def test_step_that_was_not_timed_stands_for_no_other_and_puts_none_off(page: Page, time: Time) -> None:
    """One of a second optimizer for the same passes, or one that is looked at closely from its middle on."""
    clock = started(page)
    clock.backward_begins()
    time.now += 0.0078125
    clock.backward_done()
    step(page, clock, 10)
    due = clock.beat.due
    for number in range(4):
        clock.beat.full = True
        step(page, clock, 20 + 10 * number)
        assert not clock.beat.full
    assert (clock.beat.due, read(page).backward_s) == (due, 0.0078125)
    clock.beat.full = True
    step(page, clock, due // 1_000_000)
    assert in_full(clock), "the next one is timed"


def test_a_single_long_wait_does_not_stand_for_the_fast_steps_before_it(page: Page, time: Time) -> None:
    clock = started(page)
    step(page, clock, 5)
    for _ in range(4):
        page.step()
    clock.backward_begins()
    clock.own_gradients_done()
    time.now += 10.0
    clock.backward_done()
    step(page, clock, 10_055)
    assert 10.0 <= read(page).waiting_s <= 10.06, "no more than the time that has passed"


def test_set_up_and_other_threads_are_no_waiting(page: Page) -> None:
    clock = started(page)
    clock.call_left("new_group", 9.0, clock._thread)
    clock.call_left("all_reduce", 9.0, clock._thread + 1)
    clock.step(1)
    assert read(page).waiting_s == 0.0


def test_saving_is_timed_once_however_it_is_nested_and_what_it_waited_is_not_saving(page: Page, time: Time) -> None:
    clock = started(page)
    module: Any = ModuleType("checkpoints")

    def save(path: str) -> str:
        """Writes."""
        time.now += 4.0
        clock.call_left("all_gather", 1.0, clock._thread)
        return path

    module.save = save
    module.save_all = lambda: module.save("inner")
    clock.watch_saving("save", "save_all", "no_such_function")(module)
    assert module.save("here") == "here"
    assert module.save_all() == "inner"
    assert read(page).saving_s == 6.0
    assert module.save.__doc__ == "Writes."


def test_save_that_fails_fails_as_before(page: Page, time: Time) -> None:
    clock = started(page)
    module: Any = ModuleType("checkpoints")

    def save() -> None:
        time.now += 1.0
        raise OSError("disk full")

    module.save = save
    clock.watch_saving("save")(module)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            module.save()
    assert read(page).saving_s == 2.0


class Mark:
    """An event of a GPU whose queue is worked off only when told."""

    reached = 0
    passed_at = 0.0

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.number = -1

    def record(self) -> None:
        self.gpu.marks.append(self)
        self.number = len(self.gpu.marks)

    def query(self) -> bool:
        return self.number <= self.gpu.done

    def elapsed_time(self, other: Mark) -> float:
        return self.gpu.times[other.number - 1] - self.gpu.times[self.number - 1]


class Gpu:
    def __init__(self, *times: float) -> None:
        self.times = times
        self.marks: list[Mark] = []
        self.done = 0
        self.cuda = SimpleNamespace(is_current_stream_capturing=lambda: False, Event=lambda **_options: Mark(self))


def test_gpu_times_are_taken_when_the_gpu_has_passed_the_marks(page: Page) -> None:
    gpu = Gpu(0.0, 700.0, 1000.0, 1100.0, 1900.0, 2000.0)
    clock = started(page)
    clock.device = DeviceClock(gpu)
    for _ in range(2):
        clock.forward_begins()
        clock.backward_begins()
        clock.own_gradients_done()
        clock.backward_done()
        step(page, clock)
    assert read(page).waiting_s == 0.0
    gpu.done = 3
    clock.step(1)
    assert (read(page).forward_s, read(page).waiting_s) == pytest.approx((0.7, 0.3))
    gpu.done = 6
    clock.step(1)
    assert (read(page).forward_s, read(page).waiting_s) == pytest.approx((1.5, 0.4))
    assert read_page(Path(page.path)).progress.probe_errors == ()


def test_fault_of_the_gpus_clock_ends_it_and_nothing_else(page: Page) -> None:
    clock = started(page)
    clock.device = DeviceClock(Gpu())

    def broken() -> None:
        raise RuntimeError("no such event")

    clock.device.forward_begins = broken  # type: ignore[method-assign]
    clock.forward_begins()
    assert getattr(clock, "device", clock) is None
    (told,) = read_page(Path(page.path)).progress.probe_errors
    assert "timing the GPU ended" in told
