"""Memory: imports one at a time, a limit per rank, small buffers; each choice says itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.probe.import_lock import VARIABLE as LOCK_VARIABLE

LIMIT_VARIABLE = "RANKSCOPE_MEMORY_LIMIT"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LEAST_LIMIT = 256 << 20
_MOST_LIMIT = 1 << 62

LOW_MEMORY = {
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_MAX_NCHANNELS": "2",
    "NCCL_NTHREADS": "64",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "CUDA_MODULE_LOADING": "LAZY",
    "MALLOC_ARENA_MAX": "2",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""What --low-memory sets where the user has not: smaller NCCL buffers and fewer channels, an allocator that grows in
place, kernels loaded when used, fewer arenas of the host's allocator, no pool of compile workers."""


def parse_size(text: str) -> int:
    """`100G` → bytes. Raises ValueError with what to write instead."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no amount of memory: write it as 100G, 512M or a number of bytes")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size > _MOST_LIMIT:
        raise ValueError(f"'{text}' is more than an address space holds: write it as 100G, or leave it out")
    if size < _LEAST_LIMIT:
        raise ValueError(f"'{text}' is less than Python and torch need to start: give at least 256M")
    return size


def set_low_memory() -> str:
    """Sets what the user has not; says what."""
    chosen = {name: value for name, value in LOW_MEMORY.items() if name not in os.environ}
    os.environ.update(chosen)
    told = " ".join(f"{name}={value}" for name, value in chosen.items())
    return f"--low-memory: {told}" if told else "--low-memory: everything it would set is set already"


def set_memory_limit(limit: int | None, *, probe: bool) -> str | None:
    os.environ.pop(LIMIT_VARIABLE, None)
    if limit is None:
        return None
    if not probe:
        raise UsageError("--memory-limit is set by the probe inside each rank: leave --no-probe out")
    os.environ[LIMIT_VARIABLE] = str(limit)
    return f"--memory-limit: address space of each rank limited to {limit / (1 << 30):.1f} GB (RLIMIT_AS)"


def serialize_imports(mode: str, processes: int, pages: Path | None) -> str | None:
    """Decides whether ranks import one at a time, and tells the ranks; says so where it does."""
    os.environ.pop(LOCK_VARIABLE, None)
    if mode == "off" or processes < 2:
        return None
    if pages is None:
        if mode == "on":
            raise UsageError("--serialize-imports is done by the probe inside each rank: leave --no-probe out")
        return None
    lock = str(pages / "imports.lock")
    if mode == "on":
        os.environ[LOCK_VARIABLE] = lock
        return f"--serialize-imports: the {processes} ranks of this host import one at a time"
    # The launcher has imported torch itself: its own peak is what each rank will need at least.
    peak, free = own_peak(), free_memory()
    if peak is None or free is None or peak * processes <= free:
        return None
    os.environ[LOCK_VARIABLE] = lock
    return (
        f"importing torch takes {_gb(peak)} a rank and {_gb(free)} are free: the {processes} ranks import one at a "
        "time (--serialize-imports off to change that)"
    )


def own_peak() -> int | None:
    """The most memory that this process has had so far."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return int(match[1]) << 10 if match else None


def free_memory() -> int | None:
    """What new processes may take: of the machine, and of the control group where that has a limit."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    if match is None:
        return None
    return min(int(match[1]) << 10, _group_left())


def _group_left() -> int:
    """Version 2 of control groups, as this process sees its own."""
    folder = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").partition("0::")[2].splitlines()
        if own and (folder / own[0].lstrip("/") / "memory.max").exists():
            folder = folder / own[0].lstrip("/")
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62  # no control group with a limit that can be read
    return (1 << 62) if not most.isdigit() else max(0, int(most) - used)


def _gb(number: int) -> str:
    return f"{number / (1 << 30):.1f} GB"
