"""Tells launchers from ranks, and ranks whose launcher is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from rankscope.evidence import procfs

_PROGRAMS = frozenset({"torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "horovodrun", "rankscope"})
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher")
_SERVICE_MANAGERS = ("/lib/systemd/systemd", "/usr/lib/systemd/systemd", "/sbin/init")


def is_launcher(command: str) -> bool:
    """By the command line: `torchrun ...`, `python -m torch.distributed.run ...`, `python /usr/bin/torchrun ...`."""
    words = command.split()
    if not words:
        return False
    if "-m" in words[:4]:
        module = "".join(words[words.index("-m") + 1 :][:1])
        return module.startswith(_MODULES) or module == "rankscope"
    # An interpreter's own options end at the first word that is none.
    named = [words[0], *(word for word in words[1:] if not word.startswith("-"))][:2]
    return any(os.path.basename(word) in _PROGRAMS for word in named)


def runs_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def may_lead(pid: int) -> bool:
    """It is a rank or a launcher itself, as the first process of a container may be."""
    try:
        return runs_python(pid) or is_launcher(procfs.command_line(pid))
    except (OSError, ProcessLookupError):
        return False


def launcher_of(pid: int, rank: str) -> int:
    """The nearest ancestor that is not told the same rank: a wrapper script of the rank is passed by. 0 without one."""
    return next((above for above in ancestors(pid) if _told(above).get("RANK") != rank), 0)


def is_orphan(pid: int, environment: Mapping[str, str]) -> bool:
    """A rank whose launcher is gone: torchrun's launcher is a Python process above it; any other launcher leaves the
    rank to the first process or to a service manager."""
    if "TORCHELASTIC_RUN_ID" in environment:
        return not any(map(runs_python, ancestors(pid)))
    return "RANK" in environment and _is_reaper(next(iter(ancestors(pid)), 0))


def ancestors(pid: int) -> Iterator[int]:
    """Nearest first, without the kernel's own."""
    current = pid
    for _ in range(64):
        try:
            current = procfs.parent(current)
        except (OSError, ProcessLookupError):
            return
        if current < 1:
            return
        yield current


def _told(pid: int) -> dict[str, str]:
    try:
        return procfs.environment(pid)
    except (OSError, TimeoutError):
        return {}


def _is_reaper(pid: int) -> bool:
    if pid < 1:
        return True
    try:
        command = procfs.command_line(pid)
    except (ProcessLookupError, OSError):
        return False
    return (pid == 1 and not is_launcher(command)) or command.startswith(_SERVICE_MANAGERS)
