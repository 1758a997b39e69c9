"""`rankscope gpus` and `--gpus`, against a simulated NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from rankscope.commands.gpus import gpus_command
from rankscope.errors import UsageError
from rankscope.evidence import gpu_state
from rankscope.evidence.gpu_state import GpuProcess, GpuState, read_gpu_states, xids_by_bus
from rankscope.launch import options
from rankscope.launch.beforehand import place_on_gpus
from rankscope.launch.gpu_choice import Wish, choose, choose_gpus, parse_wish, visible_indices

GIB = 1 << 30


def gpu(index: int, *, used: float = 0.0, busy: int = 0, pids: tuple[int, ...] = (), **more: Any) -> GpuState:
    processes = tuple(GpuProcess(pid, GIB, "python train.py", "ana") for pid in pids)
    state = GpuState(index, "H100", f"GPU-{index:04d}", "", busy, int(used * GIB), 80 * GIB, 40, 0)
    return replace(state, processes=processes, **more)


BUSY = gpu(0, used=60, busy=97, pids=(41,))
HALF = gpu(1, used=10, busy=3, pids=(42,))
FREE = gpu(2, used=0.5)
BROKEN = gpu(3, remap_failed=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NUM_GPUS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        os.environ.pop(name, None)


@pytest.mark.parametrize(
    ("text", "wish"),
    [("0,3", Wish((0, 3), None)), ("2", Wish((2,), None)), ("auto", Wish(None, None)), ("auto:2", Wish(None, 2))],
)
def test_wish_is_read(text: str, wish: Wish) -> None:
    assert parse_wish(text) == wish


@pytest.mark.parametrize("text", ["", "auto:", "auto:0", "all", "1,1", "0,x", "-1"])
def test_bad_wish_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        parse_wish(text)


def test_auto_takes_all_that_are_free_and_says_why() -> None:
    other = gpu(4, used=0.1)
    choice = choose([BUSY, HALF, FREE, BROKEN, other], parse_wish("auto"))
    assert (choice.indices, choice.enough) == ((2, 4), True)
    text = "\n".join(choice.reasons)
    assert "GPU 2 chosen: no process, 79.5 GiB free, 0 % busy" in text
    assert "GPU 3 left out: its memory is broken" in text


def test_freest_is_taken_first_even_when_none_is_free() -> None:
    choice = choose([BUSY, HALF], parse_wish("auto:1"))
    assert (choice.indices, choice.enough) == ((1,), False)
    assert "the freest of those left, though 10.0 GiB in use, used by process 42" in choice.reasons[0]


def test_gpu_with_a_grave_error_in_the_log_comes_last() -> None:
    assert choose([gpu(0, xids=(79,)), gpu(1)], parse_wish("auto:1")).indices == (1,)
    assert choose([gpu(0, xids=(13,)), gpu(1)], parse_wish("auto:1")).indices == (0,)


def test_impossible_wishes_are_one_line() -> None:
    with pytest.raises(UsageError, match="names GPU 7, and this machine has GPUs 0, 2"):
        choose([BUSY, FREE], parse_wish("0,7"))
    with pytest.raises(UsageError, match="this machine has 1 GPUs that can be used"):
        choose([FREE, BROKEN], parse_wish("auto:2"))
    with pytest.raises(UsageError, match="no GPU that can be used"):
        choose([BROKEN], parse_wish("auto"))


def test_schedulers_choice_is_not_left() -> None:
    states = [FREE, gpu(3), gpu(4)]
    assert visible_indices(states, {"CUDA_VISIBLE_DEVICES": "3,GPU-0004"}) == frozenset({3, 4})
    assert choose(states, parse_wish("auto"), frozenset({3})).indices == (3,)


def test_waits_until_enough_are_free() -> None:
    answers = iter([(BUSY, HALF), (BUSY, HALF), (BUSY, gpu(1))])
    said: list[str] = []
    pauses: list[float] = []
    chosen = choose_gpus("auto:1", wait=True, say=said.append, read=lambda: next(answers), pause=pauses.append)
    assert (chosen, len(pauses)) == ((1,), 2)
    assert said[0].startswith("waiting for free GPUs")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_machine_without_gpus_is_one_line() -> None:
    with pytest.raises(UsageError, match="--gpus auto: no NVIDIA driver"):
        choose_gpus("auto", wait=False, say=print, read=lambda: "no NVIDIA driver on this machine")


def parsed(*arguments: str) -> options.RunOptions:
    return options.parse([*arguments, __file__])


def test_one_rank_for_each_chosen_gpu_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.launch.beforehand.choose_gpus", lambda *_, **__: (1, 2))
    chosen = parsed("--gpus", "auto")
    place_on_gpus(chosen)
    assert chosen.torch.nproc_per_node == "2"
    chosen = parsed("--gpus", "auto", "--nproc-per-node", "1")
    place_on_gpus(chosen)
    assert chosen.torch.nproc_per_node == "1"
    with pytest.raises(UsageError, match="only 2 GPUs"):
        place_on_gpus(parsed("--gpus", "auto", "--nproc-per-node", "3"))


def test_num_gpus_is_honoured_and_an_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUM_GPUS", "3")
    chosen = parsed()
    place_on_gpus(chosen)
    assert chosen.torch.nproc_per_node == "3"
    chosen = parsed("--nproc_per_node=2")
    place_on_gpus(chosen)
    assert chosen.torch.nproc_per_node == "2"
    monkeypatch.setenv("NUM_GPUS", "many")
    with pytest.raises(UsageError, match="NUM_GPUS=many"):
        place_on_gpus(parsed())


def test_wait_needs_gpus() -> None:
    with pytest.raises(UsageError, match="--wait waits for free GPUs"):
        parsed("--wait")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A driver with a GPU in use by an orphaned rank, one with a sick memory, and one that is lost."""
    environment = {**os.environ, "RANK": "5"}
    rank = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], env=environment, stdin=subprocess.PIPE
    )
    monkeypatch.setattr(gpu_state, "is_orphan", lambda pid, _environment: pid == rank.pid)

    def handle(index: int) -> int:
        if index == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def processes(index: int) -> list[Any]:
        gone = SimpleNamespace(pid=2**22 + 5, usedGpuMemory=None)
        return [SimpleNamespace(pid=rank.pid, usedGpuMemory=6 * GIB), gone] if index == 0 else []

    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H100",
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetPciInfo": lambda index: SimpleNamespace(busId=f"00000000:3{index}:00.0"),
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(used=(6 - 6 * index) * GIB, total=80 * GIB),
        "nvmlDeviceGetTemperature": lambda *_: 51,
        "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
        "nvmlDeviceGetRemappedRows": lambda index: (0, 0, index == 1, 0),
        "nvmlDeviceGetComputeRunningProcesses": processes,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(gpu_state, "kernel_lines", lambda _: ("NVRM: Xid (PCI:0000:31:00): 79, pid=9, gone",))
    yield rank.pid
    rank.communicate(timeout=30)


def test_table_shows_health_and_who_was_left_behind(nvml: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpus_command([]) == 0
    shown = capsys.readouterr().out
    assert f"pid {nvml}  6.0 GiB" in shown
    assert f"LEFT BEHIND: a rank of an earlier job (RANK=5) whose launcher is gone (kill -9 {nvml})" in shown
    assert "not visible from here" in shown
    assert "memory repair pending: reset it" in shown
    assert "NOT FIT: it does not answer" in shown
    assert "Xid 79: reset it" in shown
    assert gpus_command(["--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["gpus"][1]["xids"] == [79]
    assert content["choice"] == [1]


def test_xids_are_told_apart_by_their_bus() -> None:
    lines = ["NVRM: Xid (PCI:0000:3b:00): 31, pid=1", "NVRM: Xid (PCI:0000:3b:00): 79, x", "usb 1-1: new device"]
    assert xids_by_bus(lines) == {"3b:00": (31, 79)}


def test_machine_without_a_driver_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if not isinstance(read_gpu_states(), str):
        pytest.skip("this machine has GPUs")
    assert gpus_command([]) == 1
    assert "no GPU to show: no NVIDIA driver" in capsys.readouterr().out


@pytest.mark.gpu
def test_real_gpus_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    states = read_gpu_states()
    if isinstance(states, str):
        pytest.skip(f"needs a CUDA device: {states}")
    gpus_command([])
    shown = capsys.readouterr().out
    assert all(state.name in shown and state.memory_total_bytes for state in states)
