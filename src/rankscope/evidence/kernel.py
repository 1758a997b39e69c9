"""What the kernel says about memory, killed processes and devices."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_LINES = 200
_READ_LIMIT_S = 2.0
_TELLING = re.compile(
    r"oom-kill|out of memory|killed process|oom_reaper|NVRM|\bXid\b|segfault|general protection|I/O error"
    r"|blocked for more than|hung.task|\btraps:",
    re.IGNORECASE,
)
_MICROSECONDS = re.compile(rb"[0-9]{1,18}")
_CGROUPS = Path("/sys/fs/cgroup")


def kernel_lines(since: float) -> tuple[str, ...] | str:
    """The newest 200 lines of the kernel's log since then about memory, GPUs, crashes or dead devices.

    Where the log may not be read, the reason.
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return f"the kernel's log cannot be read: {error.strerror}"
    try:
        # The log counts from the start of the machine, without the time it slept.
        started = time.time() - time.monotonic()
        return telling_lines(_records(log), since, started)
    except OSError as error:
        return f"the kernel's log cannot be read: {error.strerror}"
    finally:
        os.close(log)


def telling_lines(records: Iterable[bytes], since: float, started: float) -> tuple[str, ...]:
    """Picks from `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT` records of a machine that began at `started`."""
    lines: list[str] = []
    for record in records:
        head, _, text = record.partition(b";")
        fields = head.split(b",")
        if len(fields) < 3 or not _MICROSECONDS.fullmatch(fields[2]) or started + int(fields[2]) / 1e6 < since:
            continue
        # Lines that begin with a space are machine-readable details of the record.
        line = text.split(b"\n", 1)[0].decode(errors="replace").strip()
        if _TELLING.search(line):
            lines.append(line)
    return tuple(lines[-MAX_LINES:])


def oom_kill_count() -> int | None:
    """Processes that the memory controller has killed so far in this cgroup; None where it does not count."""
    return read_oom_kills(Path("/proc/self/cgroup").read_text())


def read_oom_kills(membership: str) -> int | None:
    """The count of the group that a `/proc/PID/cgroup` file names."""
    for path in _memory_files(membership):
        try:
            fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
        except OSError:
            continue
        if "oom_kill" in fields:
            return int(fields["oom_kill"])
    return None


def memory() -> tuple[int, int]:
    """Bytes of the machine's memory, and how many of them are available."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return _kilobytes(fields["MemTotal"]), _kilobytes(fields["MemAvailable"])


def _kilobytes(field: str) -> int:
    return int(field.split(maxsplit=1)[0]) * 1024


def _records(log: int) -> Iterator[bytes]:
    deadline = time.monotonic() + _READ_LIMIT_S
    while time.monotonic() < deadline:
        try:
            record = os.read(log, 8192)
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The record was overwritten before it was read; the next read goes on with the oldest left.
            continue
        if not record:
            return
        yield record


def _memory_files(membership: str) -> Iterator[Path]:
    """Where the count may stand: in the own group, else in the folder that a container sees as its root."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        inner = path.strip("/")
        if controllers == "":
            for root in (_CGROUPS, _CGROUPS / "unified"):
                yield root / inner / "memory.events"
                yield root / "memory.events"
        elif "memory" in controllers.split(","):
            yield _CGROUPS / "memory" / inner / "memory.oom_control"
            yield _CGROUPS / "memory" / "memory.oom_control"
