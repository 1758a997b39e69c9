"""What `/proc` tells about a process, without touching it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from rankscope.evidence.descriptors import (
    current_syscall,
    established_sockets,
    open_descriptors,
    unsent_bytes,
    waited_lock,
)
from rankscope.evidence.model import ProcessSample
from rankscope.evidence.tcp_bytes import network_bytes
from rankscope.evidence.time_limit import call_within
from rankscope.mask import mask_arguments, mask_environment

T = TypeVar("T")
READ_LIMIT_S = 1.0
COMMAND_LENGTH = 300
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "GPU_RANK"}
)
_VARIABLE_PREFIXES = (
    *("MASTER_", "CUDA_", "NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "OMP_", "WANDB_", "HF_", "SLURM_"),
    *("PYTORCH_", "PYTHON", "DDP_"),
)


class Pulse(msgspec.Struct, frozen=True):
    """Signs of life of a process and all its living descendants."""

    state: str
    """Of the process itself, as the kernel's letter."""
    cpu_s: float
    io_bytes: int
    rss_bytes: int
    network_bytes: int | None = None
    """Carried by TCP connections so far; None where it was not asked, or could not be told."""


class _Stat(msgspec.Struct, frozen=True):
    state: str
    ppid: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int


def pulse(pid: int, *, network: bool = False) -> Pulse:
    """The process's state and its processor time, bytes read and written and memory, descendants included.

    Reads only files that the kernel answers at once. Bytes of a process that may not be seen count as 0. With
    `network`, asks for the bytes of TCP connections too, which takes a look at every connection of the machine.
    Raises ProcessLookupError when the process is gone.
    """
    own = _stat(pid)
    ticks, pages = own.cpu_ticks, own.rss_pages
    moved = sum(_io_bytes(pid))
    below = descendants(pid)
    for child in below:
        try:
            stat = _stat(child)
        except ProcessLookupError:
            continue
        ticks += stat.cpu_ticks
        pages += stat.rss_pages
        moved += sum(_io_bytes(child))
    carried = network_bytes((pid, *below)) if network else None
    return Pulse(own.state, ticks / _TICKS, moved, pages * _PAGE, carried)


def resident_bytes(pid: int) -> int:
    """Of the process alone; one small file. 0 of one that has ended and was not waited for.

    Raises ProcessLookupError when the process is gone, PermissionError where it may not be seen.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error


def sample_process(pid: int) -> ProcessSample:
    """One full look: state, processor time, memory, system call of the main thread, locks, files, sockets.

    Processor time, bytes and memory include living descendants. What may not be read is None or empty.
    Raises ProcessLookupError when the process is gone.
    """
    own = _stat(pid)
    family = [pid, *descendants(pid)]
    ticks = pages = read = written = 0
    for member in family:
        try:
            stat = own if member == pid else _stat(member)
        except ProcessLookupError:
            continue
        member_read, member_written = _io_bytes(member)
        ticks, pages = ticks + stat.cpu_ticks, pages + stat.rss_pages
        read, written = read + member_read, written + member_written
    files = _unless_stuck(lambda: open_descriptors(pid))
    syscall = _unless_stuck(lambda: current_syscall(pid))
    return ProcessSample(
        at=time.time(),
        state=own.state,
        cpu_s=ticks / _TICKS,
        read_bytes=read,
        write_bytes=written,
        rss_bytes=pages * _PAGE,
        wchan=_wchan(pid),
        syscall=syscall,
        waits_for_lock=_unless_stuck(lambda: waited_lock(pid, syscall)),
        threads=own.threads,
        open_files=None if files is None else len(files),
        open_files_limit=_open_files_limit(pid),
        sockets=_unless_stuck(lambda: established_sockets(pid, files or {})) or (),
        sleeps=_sleeps(pid),
        main_cpu_s=_main_cpu_s(pid),
        unsent_bytes=_unless_stuck(lambda: unsent_bytes(pid, files or {})) or 0,
        network_bytes=_unless_stuck(lambda: network_bytes(family)),
    )


def _sleeps(pid: int) -> int | None:
    """Of the main thread alone: the kernel counts it per thread, and shows it here for the first one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else None


def _main_cpu_s(pid: int) -> float | None:
    """The kernel's own account of the main thread: the clock ticks of `stat` are too coarse for a little work."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def descendants(pid: int) -> list[int]:
    """All living descendants: children first, then grandchildren. Empty for a process that is gone."""
    try:
        found = _children(pid)
        for child in found:
            # The list grows while it is walked: breadth first.
            found.extend(_children(child))
    except NotImplementedError:
        return _descendants_by_scan(pid)
    return found


def parent(pid: int) -> int:
    """The parent's pid; 0 for the first process. Raises ProcessLookupError when the process is gone."""
    return _stat(pid).ppid


def start_time(pid: int) -> float:
    """When the process began. Raises ProcessLookupError when it is gone."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - _stat(pid).start_ticks / _TICKS
    return time.time() - age


def command_line(pid: int) -> str:
    """The command with its secrets masked, shortened; `[name]` in brackets where the process shows none.

    Raises ProcessLookupError when the process is gone.
    """
    # The kernel reads this from the process's own memory, which a stuck process can keep locked.
    try:
        raw = call_within(READ_LIMIT_S, lambda: _read(pid, "cmdline"))
    except (PermissionError, TimeoutError):
        raw = b""
    if not raw:
        return f"[{_read(pid, 'comm').decode(errors='replace').strip()}]"
    arguments = raw.rstrip(b"\0").decode(errors="replace").split("\0")
    text = " ".join(" ".join(mask_arguments(arguments)).split())
    return text if len(text) <= COMMAND_LENGTH else text[: COMMAND_LENGTH - 1] + "…"


def environment(pid: int) -> dict[str, str]:
    """The variables that matter to a distributed job, as the process was started with them, secrets masked.

    Raises ProcessLookupError when the process is gone, PermissionError when it may not be read, and
    TimeoutError when the kernel does not answer.
    """
    raw = call_within(READ_LIMIT_S, lambda: _read(pid, "environ")).decode(errors="replace")
    pairs = (entry.partition("=") for entry in raw.split("\0") if "=" in entry)
    return mask_environment({name: value for name, _, value in pairs if _is_interesting(name)})


def _unless_stuck(read: Callable[[], T]) -> T | None:
    """None when the kernel does not answer, as it may not about a process stuck inside it."""
    try:
        return call_within(READ_LIMIT_S, read)
    except TimeoutError:
        return None


def _is_interesting(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)


def _read(pid: int, name: str) -> bytes:
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} is gone") from error
    # A file object would double the cost, and a pulse reads one file for each thread.
    try:
        parts: list[bytes] = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _stat(pid: int) -> _Stat:
    # The name in parentheses may hold spaces and parentheses itself; nothing after it does.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return _Stat(
        state=fields[0].decode(),
        ppid=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def _io_bytes(pid: int) -> tuple[int, int]:
    """Bytes through read and write calls; 0 of a process of another user, or one that is gone."""
    try:
        lines = _read(pid, "io").split()
    except (ProcessLookupError, PermissionError):
        return 0, 0
    return int(lines[1]), int(lines[3])


def _children(pid: int) -> list[int]:
    """Raises NotImplementedError where the kernel keeps no lists of children."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            found.extend(map(int, _read(pid, f"task/{thread}/children").split()))
        except ProcessLookupError:
            if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                raise NotImplementedError from None
    return found


def _descendants_by_scan(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            children.setdefault(_stat(int(entry)).ppid, []).append(int(entry))
        except ProcessLookupError:
            continue
    found = list(children.get(pid, ()))
    for child in found:
        found.extend(children.get(child, ()))
    return found


def _wchan(pid: int) -> str | None:
    try:
        name = _read(pid, "wchan").decode(errors="replace")
    except (PermissionError, ProcessLookupError):
        return None
    return None if name in {"", "0"} else name


def _open_files_limit(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/limits").read_text()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return None
    for line in text.splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None
