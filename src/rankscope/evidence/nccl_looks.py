"""What NCCL and the GPUs themselves tell of a job, asked while its stacks are taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Executor

from rankscope.evidence import gpm, gpus, procfs, ras
from rankscope.evidence.communicators import RasLook
from rankscope.evidence.device_work import DeviceWork
from rankscope.evidence.time_limit import call_within

_READ_LIMIT_S = 1.0
_SECOND_LOOK_S = 2.5
_INNER_PID = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)


class NcclLooks:
    """Two answers of NCCL, one at either end of the look, and the GPUs' counters in between."""

    def __init__(self, pool: Executor, pids: Sequence[int], world_size: int, seconds: float) -> None:
        self._world_size = world_size
        self._pids = {_inner_pid(pid): pid for pid in pids}
        self._address = ras.address_of(_environment(pids[0]))
        self._work = pool.submit(_work_of_gpus, max(0.5, seconds))
        self._first = pool.submit(self._ask, max(_SECOND_LOOK_S, seconds))
        self._second: RasLook | str | None = None

    def look_again(self) -> None:
        """At the end of the look, and before anything pauses a process, which then could not answer. Whoever gave no
        answer at the beginning is not asked again."""
        if isinstance(self._first.result(), RasLook):
            self._second = self._ask(_SECOND_LOOK_S)

    def answers(self) -> tuple[tuple[RasLook, ...], str]:
        """What NCCL told, and why it told no more."""
        told = [self._first.result(), self._second]
        looks = tuple(each for each in told if isinstance(each, RasLook))
        return looks, next((each for each in told if isinstance(each, str)), "")

    def work(self) -> dict[int, DeviceWork]:
        """GPU, by NVML's index → what it did."""
        return self._work.result()

    def _ask(self, limit_s: float) -> RasLook | str:
        if isinstance(self._address, str):
            return self._address
        return ras.ask_job(self._address, self._pids, self._world_size, limit_s)


def begin_looks(pool: Executor, pids: Sequence[int], world_size: int, seconds: float) -> NcclLooks | None:
    """Begins to ask, if any of the processes uses NCCL."""
    users = [pid for pid in pids if _uses_nccl(pid)]
    return NcclLooks(pool, users, world_size, seconds) if users else None


def _uses_nccl(pid: int) -> bool:
    """NCCL and the driver's library are loaded: the driver's only with the first use of a GPU. Who names the address
    of NCCL's RAS means to use it."""
    if "NCCL_RAS_ADDR" in _environment(pid):
        return True

    def look() -> bool:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            mapped = maps.read()
        return b"libnccl" in mapped and b"/libcuda.so" in mapped

    try:
        return call_within(_READ_LIMIT_S, look)
    except (OSError, TimeoutError):
        return False


def _environment(pid: int) -> dict[str, str]:
    try:
        return procfs.environment(pid)
    except (OSError, TimeoutError):
        return {}


def _inner_pid(pid: int) -> int:
    """The pid that the process has for itself, in a container of its own."""

    def read() -> str:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            return status.read()

    try:
        match = _INNER_PID.search(call_within(_READ_LIMIT_S, read))
    except (OSError, TimeoutError):
        return pid
    return int(match[1]) if match is not None else pid


def _work_of_gpus(seconds: float) -> dict[int, DeviceWork]:
    devices = gpus.read_gpus()
    return {} if isinstance(devices, str) else gpm.sample([gpu.index for gpu in devices], seconds)
