"""GPM counters as NVML gives them, recorded on an H200 that hung in NCCL and on one that trained."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from rankscope.evidence import gpm
from rankscope.evidence.gpm import DeviceWork

SM, TENSOR, DRAM, FP64, FP32, FP16 = 2, 5, 10, 11, 12, 13
HANGS = {SM: 0.9, TENSOR: 0.0, FP32: 0.0, FP16: 0.0, FP64: 0.0, DRAM: 0.008}
TINY = {SM: 1.4838, TENSOR: 0.0001, FP32: 0.0045, FP16: 0.0, FP64: 0.0, DRAM: 0.016}
"""A healthy job of a model so small that its kernels are over at once."""
TRAINS = {SM: 18.0, TENSOR: 0.0, FP32: 12.0, FP16: 0.0, FP64: 0.0, DRAM: 1.9}


def refuse(code: int) -> Any:
    def fail(*_arguments: object) -> object:
        raise pynvml.NVMLError(code)

    return fail


class Driver:
    """NVML with some GPUs of known counters; it counts the samples that are still allocated."""

    def __init__(self, counters: list[dict[int, float] | None], watts: float, memory: int) -> None:
        self.counters, self.watts, self.memory = counters, watts, memory
        self.open_samples = 0
        self.of_sample: dict[int, int] = {}
        self.states: list[Any] = []

    def functions(self) -> dict[str, Any]:
        return {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByIndex": self.handle,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=100, memory=self.memory),
            "nvmlDeviceGetPowerUsage": lambda _: int(self.watts * 1000),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlGpmQueryDeviceSupport": lambda device: SimpleNamespace(
                isSupportedDevice=int(self.counters[device] is not None)
            ),
            "nvmlGpmSampleAlloc": self.allocate,
            "nvmlGpmSampleGet": self.take,
            "nvmlGpmSampleFree": self.free,
            "nvmlGpmMetricsGet": self.metrics,
        }

    def handle(self, index: int) -> int:
        if index >= len(self.counters):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def allocate(self) -> Any:
        self.open_samples += 1
        state = pynvml.struct_c_nvmlGpmSample_t()
        self.states.append(state)
        return ctypes.pointer(state)

    def take(self, device: int, taken: Any) -> Any:
        self.of_sample[ctypes.addressof(taken.contents)] = device
        return taken

    def free(self, _taken: Any) -> None:
        self.open_samples -= 1

    def metrics(self, question: Any) -> Any:
        assert question.version == 1
        first, second = (self.of_sample[ctypes.addressof(s.contents)] for s in (question.sample1, question.sample2))
        assert first == second, "both samples are of one device"
        told = self.counters[first]
        assert told is not None
        for place in range(question.numMetrics):
            metric = question.metrics[place]
            known = metric.metricId in told
            metric.nvmlReturn = 0 if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = told.get(metric.metricId, 0.0)
        return question


def install(patch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    for name, answer in driver.functions().items():
        patch.setattr(pynvml, name, answer)
    return driver


def test_counters_tell_a_device_that_works_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver([HANGS, TRAINS], watts=126.0, memory=0))
    seen = gpm.sample((0, 1), interval_s=0.01)
    assert [seen[0].sm, seen[0].dram] == pytest.approx([0.009, 0.00008])
    assert (seen[0].tensor, seen[0].fp32, seen[0].power_w, seen[0].memory_util) == (0.0, 0.0, 126.0, 0.0)
    assert [seen[0].working(), seen[1].working()] == [False, True]
    assert driver.open_samples == 0


def test_a_tiny_job_that_works_is_not_said_to_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([TINY], watts=121.0, memory=0))
    assert gpm.sample((0,), interval_s=0.01)[0].working() is None


def test_a_counter_that_the_device_does_not_have_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([{SM: 0.9, DRAM: 0.008}], watts=126.0, memory=0))
    seen = gpm.sample((0,), interval_s=0.01)[0]
    assert (seen.counters, seen.fp32, seen.tensor) == (True, None, None)
    assert seen.working() is None, "no arithmetic counter was read: nobody knows"


@pytest.mark.parametrize(
    ("watts", "memory", "works"),
    [(126.0, 0, False), (126.0, 1, None), (222.0, 0, None), (222.0, 12, True), (400.0, 0, True)],
)
def test_before_hopper_power_and_memory_traffic_are_weaker_signs(
    monkeypatch: pytest.MonkeyPatch, watts: float, memory: int, works: bool | None
) -> None:
    install(monkeypatch, Driver([None], watts=watts, memory=memory))
    seen = gpm.sample((0,), interval_s=0.01)[0]
    assert not seen.counters
    assert seen.working() is works


def test_counters_that_fail_in_the_middle_leave_the_weaker_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver([HANGS], watts=126.0, memory=0))
    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", refuse(pynvml.NVML_ERROR_UNKNOWN))
    seen = gpm.sample((0,), interval_s=0.01)[0]
    assert (seen.counters, seen.power_w) == (False, 126.0)
    assert driver.open_samples == 0


def test_a_lost_device_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([TRAINS], watts=222.0, memory=3))
    assert set(gpm.sample((0, 7), interval_s=0.01)) == {0}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_UNKNOWN])
def test_without_a_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", refuse(code))
    assert gpm.sample((0,), interval_s=0.01) == {}


def test_kernels_that_fill_the_device_without_arithmetic_are_not_called_waiting() -> None:
    integers = DeviceWork(0.9, 0.0, 0.0, 0.0001, 300.0, 0.0, True, 0.0, 0.0, 700.0)
    many_channels = DeviceWork(0.24, 0.0, 0.0, 0.0001, 130.0, 0.0, True, 0.0, 0.0, 700.0)
    assert (integers.working(), many_channels.working()) == (None, False)
