"""Whether GPUs work or only hold a waiting kernel: NVML's GPM counters, and weaker signs where a GPU has none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from rankscope.evidence.device_work import DeviceWork
from rankscope.evidence.gpus import READ_LIMIT_S
from rankscope.evidence.time_limit import call_within

__all__ = ["DeviceWork", "sample"]

T = TypeVar("T")
_METRICS = {
    "sm": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "fp32": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16": pynvml.NVML_GPM_METRIC_FP16_UTIL,
    "fp64": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "dram": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


def sample(device_indices: Sequence[int], interval_s: float = 0.5) -> dict[int, DeviceWork]:
    """What each of the GPUs, by NVML's index, does within the interval.

    A GPU that does not answer is left out; the result is empty without a driver. Never raises, and never takes much
    longer than the interval.
    """
    wanted = tuple(dict.fromkeys(device_indices))
    if not wanted:
        return {}
    try:
        return call_within(READ_LIMIT_S + interval_s, lambda: _sample(wanted, interval_s))
    except (pynvml.NVMLError, TimeoutError):
        return {}


def _sample(indices: Sequence[int], interval_s: float) -> dict[int, DeviceWork]:
    pynvml.nvmlInit()
    try:
        handles = {index: _told(lambda index=index: pynvml.nvmlDeviceGetHandleByIndex(index)) for index in indices}  # type: ignore[misc]
        reachable = {index: handle for index, handle in handles.items() if handle is not None}
        before = {index: _counter_state(handle) for index, handle in reachable.items()}
        time.sleep(interval_s if reachable else 0.0)
        return {index: _device(handle, before[index]) for index, handle in reachable.items()}
    finally:
        pynvml.nvmlShutdown()


def _counter_state(handle: Any) -> Any | None:
    """The counters' state now, to be freed by who takes the second one; None where the GPU has no counters."""
    support = _told(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
    if support is None or not support.isSupportedDevice:
        return None
    taken = _told(pynvml.nvmlGpmSampleAlloc)
    if taken is None:
        return None
    if _told(lambda: pynvml.nvmlGpmSampleGet(handle, taken)) is None:
        _free(taken)
        return None
    return taken


def _device(handle: Any, before: Any | None) -> DeviceWork:
    shares = _counted(handle, before) if before is not None else {}
    utilization = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    return DeviceWork(
        sm=shares.get("sm"),
        tensor=shares.get("tensor"),
        fp32=shares.get("fp32"),
        dram=shares.get("dram"),
        power_w=_watts(_told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))),
        memory_util=None if utilization is None else int(utilization.memory) / 100.0,
        counters=bool(shares),
        fp16=shares.get("fp16"),
        fp64=shares.get("fp64"),
        power_limit_w=_watts(_told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
    )


def _counted(handle: Any, before: Any) -> dict[str, float]:
    """The shares between that state of the counters, which is freed here, and now."""
    after = _counter_state(handle)
    try:
        return {} if after is None else _shares(before, after)
    finally:
        _free(before)
        if after is not None:
            _free(after)


def _shares(before: Any, after: Any) -> dict[str, float]:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(_METRICS)
    question.sample1, question.sample2 = before, after
    for place, number in enumerate(_METRICS.values()):
        question.metrics[place].metricId = number
    answer = _told(lambda: pynvml.nvmlGpmMetricsGet(question))
    if answer is None:
        return {}
    told = {name: answer.metrics[place] for place, name in enumerate(_METRICS)}
    return {
        name: float(metric.value) / 100.0
        for name, metric in told.items()
        if metric.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(metric.value)
    }


def _free(taken: Any) -> None:
    _told(lambda: pynvml.nvmlGpmSampleFree(taken))


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000.0


def _told(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except pynvml.NVMLError:
        return None
