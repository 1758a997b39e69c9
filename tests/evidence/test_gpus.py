"""GPUs as NVML tells of them, and what is said where it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from rankscope.evidence import gpus
from rankscope.evidence.model import Gpu


def refuse(code: int) -> Any:
    def fail(*_arguments: object) -> object:
        raise pynvml.NVMLError(code)

    return fail


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver with two GPUs: the first answers, the second has fallen off the bus."""

    def handle(index: int) -> str:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return "handle"

    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda _: "NVIDIA H100",
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=100, memory=3),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5, total=80, free=75),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=9), SimpleNamespace(pid=7)],
        "nvmlDeviceGetTemperature": refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return monkeypatch


@pytest.mark.usefixtures("nvml")
def test_reads_what_each_gpu_tells() -> None:
    assert gpus.read_gpus() == (
        Gpu(0, "NVIDIA H100", 100, 5, 80, None, (7, 9)),
        Gpu(1, "GPU that does not answer", None, None, None, None),
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver on this machine"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no NVIDIA driver on this machine"),
        (pynvml.NVML_ERROR_UNKNOWN, "the NVIDIA driver does not answer"),
    ],
)
def test_says_why_there_are_none(nvml: pytest.MonkeyPatch, code: int, words: str) -> None:
    nvml.setattr(pynvml, "nvmlInit", refuse(code))
    assert str(gpus.read_gpus()).startswith(words)


def test_a_driver_that_hangs_is_given_up(nvml: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()
    nvml.setattr(pynvml, "nvmlInit", release.wait)
    nvml.setattr(gpus, "READ_LIMIT_S", 0.05)
    assert gpus.read_gpus() == "the NVIDIA driver gave no answer within 0.05 s"
    release.set()


def test_this_machine_answers_one_way_or_the_other() -> None:
    answer = gpus.read_gpus()
    if isinstance(answer, str):
        assert "NVIDIA driver" in answer
    else:
        assert all(gpu.name and gpu.memory_total_bytes for gpu in answer)
