"""A closer look at this machine's GPUs than evidence needs: health, and who holds their memory."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import pynvml

from rankscope.evidence.gpus import READ_LIMIT_S, no_gpus
from rankscope.evidence.kernel import kernel_lines
from rankscope.evidence.launchers import is_orphan
from rankscope.evidence.procfs import command_line, environment, pulse
from rankscope.evidence.time_limit import call_within

T = TypeVar("T")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


class GpuProcess(msgspec.Struct, frozen=True):
    pid: int
    memory_bytes: int | None
    command: str | None
    """None: no such process can be seen from here."""
    user: str | None = None
    left_behind: str | None = None
    """Why this is a remnant of an earlier job, where it is one."""


class GpuState(msgspec.Struct, frozen=True):
    index: int
    name: str
    uuid: str
    bus: str
    utilization_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: int | None
    ecc_uncorrected: int | None
    """Since the driver was loaded; None without ECC."""
    remap_pending: bool = False
    remap_failed: bool = False
    xids: tuple[int, ...] = ()
    """Xid errors of this GPU in the kernel's log, oldest first."""
    processes: tuple[GpuProcess, ...] = ()
    lost: bool = False
    """The driver knows it and cannot reach it."""


def read_gpu_states() -> tuple[GpuState, ...] | str:
    """Every GPU of this machine, or why they cannot be read. A value that a GPU does not tell is None."""
    lines = kernel_lines(0.0)
    found = xids_by_bus(() if isinstance(lines, str) else lines)
    try:
        return call_within(READ_LIMIT_S, lambda: _read_all(found))
    except (pynvml.NVMLError, TimeoutError) as error:
        return no_gpus(error)


def xids_by_bus(lines: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """`NVRM: Xid (PCI:0000:3b:00): 79, ...` → {"3b:00": (79,)}."""
    found: dict[str, tuple[int, ...]] = {}
    for line in lines:
        match = _XID.search(line)
        if match is not None:
            bus = short_bus(match[1])
            found[bus] = (*found.get(bus, ()), int(match[2]))
    return found


def short_bus(text: str) -> str:
    """`00000000:3B:00.0` and `0000:3b:00` are the same place."""
    return ":".join(text.partition(".")[0].lower().split(":")[-2:])


def _read_all(xids: dict[str, tuple[int, ...]]) -> tuple[GpuState, ...]:
    pynvml.nvmlInit()
    try:
        return tuple(_read_one(index, xids) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _read_one(index: int, xids: dict[str, tuple[int, ...]]) -> GpuState:
    handle = _told(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return GpuState(index, "GPU that does not answer", "", "", None, None, None, None, None, lost=True)
    utilization = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    remapped = _told(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    bus = _text(_told(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId))
    ecc = _told(
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )
    running: list[Any] = _told(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return GpuState(
        index=index,
        name=_text(_told(lambda: pynvml.nvmlDeviceGetName(handle))) or "unnamed GPU",
        uuid=_text(_told(lambda: pynvml.nvmlDeviceGetUUID(handle))),
        bus=bus,
        utilization_percent=None if utilization is None else int(utilization.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        temperature_c=_told(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        ecc_uncorrected=None if ecc is None else int(ecc),
        # (corrected, uncorrected, pending, failed)
        remap_pending=remapped is not None and bool(remapped[2]),
        remap_failed=remapped is not None and bool(remapped[3]),
        xids=xids.get(short_bus(bus), ()) if bus else (),
        processes=tuple(sorted((_process(item) for item in running), key=lambda seen: seen.pid)),
    )


def _process(item: Any) -> GpuProcess:
    pid = int(item.pid)
    used = getattr(item, "usedGpuMemory", None)
    memory = None if used is None else int(used)
    try:
        state, command = pulse(pid).state, command_line(pid)
        user = _user(os.stat(f"/proc/{pid}").st_uid)
    except (ProcessLookupError, OSError):
        return GpuProcess(pid, memory, None)
    return GpuProcess(pid, memory, command, user, _left_behind(pid, state))


def _left_behind(pid: int, state: str) -> str | None:
    if state == "Z":
        return "a zombie: it has ended and its parent has not taken note"
    try:
        variables = environment(pid)
    except (ProcessLookupError, OSError):
        return None
    if "RANK" in variables and is_orphan(pid, variables):
        return f"a rank of an earlier job (RANK={variables['RANK']}) whose launcher is gone"
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def _told(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except pynvml.NVMLError:
        return None
