"""`check limits`: open files, locked memory, processes, and what the cgroup allows."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from rankscope.checks.model import Findings, Flaw, joined
from rankscope.checks.sizes import size_text
from rankscope.evidence.kernel import memory

LEAST_FILES = 1024
"""What a rank with a few loader workers, its sockets and its shared tensors takes."""
GOOD_FILES = 4096
LEAST_PROCESSES = 1024
LEAST_MEMORY = 2 << 30
_UNLIMITED = resource.RLIM_INFINITY
_CGROUPS = Path("/sys/fs/cgroup")


def check_limits() -> Findings:
    return joined([open_files(), locked_memory(), process_count(), cgroup_memory()])


def open_files() -> Findings:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != _UNLIMITED and soft < LEAST_FILES:
        allowed = "any number" if hard == _UNLIMITED else str(hard)
        return Findings(
            flaws=(
                Flaw(
                    "fd-exhausted",
                    f"a process may open only {soft} files (ulimit -n); data loaders and sockets of a rank need more",
                    f"ulimit -n {GOOD_FILES if hard == _UNLIMITED else min(hard, 65536)} before the start "
                    f"(this user may set {allowed}), or raise it in /etc/security/limits.conf or the container",
                ),
            )
        )
    told = "unlimited" if soft == _UNLIMITED else str(soft)
    advice = ""
    if soft != _UNLIMITED and soft < GOOD_FILES:
        advice = f"; many loader workers need more: ulimit -n {GOOD_FILES}"
    return Findings(facts=(f"open files: {told}{advice}",))


def locked_memory(infiniband: Path = Path("/sys/class/infiniband")) -> Findings:
    """Only RDMA pins memory in amounts that a limit would stop."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    devices = sorted(os.listdir(infiniband)) if infiniband.is_dir() else []
    if devices and soft != _UNLIMITED:
        return Findings(
            flaws=(
                Flaw(
                    "comm-error",
                    f"only {size_text(soft)} may be locked in memory (ulimit -l), and NCCL pins its buffers for "
                    f"{', '.join(devices)}",
                    "ulimit -l unlimited; in a container: --ulimit memlock=-1",
                ),
            )
        )
    told = "unlimited" if soft == _UNLIMITED else f"{size_text(soft)}, no RDMA device needs more"
    return Findings(facts=(f"locked memory: {told}",))


def process_count() -> Findings:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found = [] if soft == _UNLIMITED else [(soft, "ulimit -u", "ulimit -u 65536 before the start")]
    most = _first_number("pids.max", "pids")
    if most is not None:
        found.append((most, "pids.max of the cgroup", "start the container with --pids-limit -1"))
    flaws = tuple(
        Flaw(
            "exception",
            f"only {number} processes and threads are allowed ({name}); ranks, loader workers and their threads "
            "need more",
            fix,
        )
        for number, name, fix in found
        if number < LEAST_PROCESSES
    )
    if flaws:
        return Findings(flaws=flaws)
    return Findings(facts=(f"processes: {min((number for number, _, _ in found), default='unlimited')}",))


def cgroup_memory() -> Findings:
    total, available = memory()
    limit = _first_number("memory.max", "memory", old="memory.limit_in_bytes")
    used = _first_number("memory.current", "memory", old="memory.usage_in_bytes")
    bounded = limit is not None and limit < total
    if bounded and limit is not None:
        # Files in the page cache count as used and are given back when needed; the limit itself is the hard fact.
        left = max(limit - (used or 0), 0) + _reclaimable()
        available = min(available, left)
    if available < LEAST_MEMORY:
        within = f" of the cgroup's {size_text(limit)}" if bounded and limit is not None else f" of {size_text(total)}"
        return Findings(
            flaws=(
                Flaw(
                    "out-of-memory-host",
                    f"only {size_text(available)}{within} of memory is left; importing torch in a few ranks takes more",
                    "raise the memory limit of the container or the job, or end what uses it (ps aux --sort -rss)",
                ),
            )
        )
    told = f"cgroup limit {size_text(limit)}" if bounded and limit is not None else "no cgroup limit"
    return Findings(facts=(f"memory: {size_text(available)} available of {size_text(total)}, {told}",))


def _reclaimable() -> int:
    for path in _group_files("memory.stat", "memory", None):
        try:
            fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
        except OSError:
            continue
        return int(fields.get("inactive_file", 0)) + int(fields.get("active_file", 0))
    return 0


def _first_number(name: str, controller: str, old: str | None = None) -> int | None:
    """The smallest number that the own cgroup or one above it sets; None where nothing is set."""
    found = []
    for path in _group_files(name, controller, old):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found, default=None)


def _group_files(name: str, controller: str, old: str | None) -> list[Path]:
    files: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, wanted = _CGROUPS, name
        elif controller in controllers.split(","):
            base, wanted = _CGROUPS / controller, old or name
        else:
            continue
        inner = Path(path.lstrip("/"))
        files += [base / folder / wanted for folder in (inner, *inner.parents)]
    return files
