"""The state of this machine's NVIDIA GPUs, through NVML."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml

from rankscope.evidence.model import Gpu
from rankscope.evidence.procfs import descendants
from rankscope.evidence.time_limit import call_within

T = TypeVar("T")
READ_LIMIT_S = 5.0

_NO_DRIVER = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})


def read_gpus() -> tuple[Gpu, ...] | str:
    """Every GPU of this machine, or why they cannot be read. A value that a GPU does not tell is None."""
    try:
        return call_within(READ_LIMIT_S, _read_all)
    except (pynvml.NVMLError, TimeoutError) as error:
        return no_gpus(error)


def no_gpus(error: Exception) -> str:
    """Why the GPUs cannot be read, in words."""
    if isinstance(error, TimeoutError):
        # What a GPU that has fallen off the bus looks like from here.
        return f"the NVIDIA driver gave no answer within {READ_LIMIT_S:g} s"
    if isinstance(error, pynvml.NVMLError) and error.value in _NO_DRIVER:
        return "no NVIDIA driver on this machine"
    return f"the NVIDIA driver does not answer: {error}"


class DriverVersions(msgspec.Struct, frozen=True):
    driver: str
    cuda: tuple[int, int]
    """The newest CUDA that the driver serves."""


def driver_versions() -> DriverVersions | None:
    """None without a driver, or with one that does not answer."""
    try:
        return call_within(READ_LIMIT_S, _driver_versions)
    except (pynvml.NVMLError, TimeoutError):
        return None


def _driver_versions() -> DriverVersions:
    pynvml.nvmlInit()
    try:
        name = pynvml.nvmlSystemGetDriverVersion()
        number = int(pynvml.nvmlSystemGetCudaDriverVersion())
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return DriverVersions(text, (number // 1000, number % 1000 // 10))
    finally:
        pynvml.nvmlShutdown()


def _read_all() -> tuple[Gpu, ...]:
    pynvml.nvmlInit()
    try:
        return tuple(_read_one(index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _read_one(index: int) -> Gpu:
    handle = _told(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return Gpu(index, "GPU that does not answer", None, None, None, None)
    name = _told(lambda: pynvml.nvmlDeviceGetName(handle))
    utilization = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    processes: list[Any] = _told(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return Gpu(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else name or "unnamed GPU",
        utilization_percent=None if utilization is None else int(utilization.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        temperature_c=_told(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        pids=tuple(sorted({int(process.pid) for process in processes})),
    )


def _told(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except pynvml.NVMLError:
        return None


def uses_gpu(pid: int) -> bool:
    """Whether the process, or one that it started, has an NVIDIA GPU open."""
    try:
        return any(_has_gpu_open(each) for each in (pid, *descendants(pid)))
    except ProcessLookupError:
        return False


def _has_gpu_open(pid: int) -> bool:
    try:
        files = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for file in files:
        try:
            if os.readlink(f"/proc/{pid}/fd/{file}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue  # closed meanwhile
    return False
