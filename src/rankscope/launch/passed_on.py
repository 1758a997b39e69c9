"""Signals that are the program's own affair: SIGUSR1 and SIGUSR2 go to the ranks, and end nothing."""

from __future__ import annotations

import os
import signal

from rankscope.launch.job import Job, RankProcess
from rankscope.report import live

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def pass_on(number: int, job: Job) -> None:
    """To every rank that handles the signal. One that does not would die of it: it is spared, and we say so."""
    spared = []
    for process in job.living():
        catcher = next((pid for pid in _processes_of(process, job) if catches(pid, number)), None)
        if catcher is None:
            spared.append(process.rank)
            continue
        try:
            os.kill(catcher, number)
        except ProcessLookupError:
            continue  # it has ended by itself
    live.tell(live.PassedOn(number, len(job.living()) - len(spared), tuple(spared)), job.lang)


def _processes_of(process: RankProcess, job: Job) -> list[int]:
    """The rank's own process, and the Python inside where that is a wrapper."""
    page = job.page_of(process)
    inner = page.stem.rpartition("-")[2] if page is not None else ""
    return [process.pid, *([int(inner)] if inner.isdigit() and int(inner) != process.pid else [])]


def catches(pid: int, number: int) -> bool:
    """By the kernel's word; a rank that ignores the signal does not need it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
