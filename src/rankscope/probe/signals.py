"""What lets others look at this process: stacks on a signal and on a crash, permission to trace; and how it ends."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any

from rankscope.probe.page import STACKS_ON_SIGNAL, Page

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = (1 << 64) - 1

STACK_SIGNAL = signal.SIGRTMIN + 11
"""Far from what programs, profilers and schedulers use."""

_kept: list[Any] = []


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def allow_tracing(page: Page) -> None:
    """Lets py-spy in where the kernel restricts tracing to descendants."""
    if os.path.exists("/proc/sys/kernel/yama/ptrace_scope"):
        _prctl(_PR_SET_PTRACER, _ANY_PROCESS)
    page.touch()


def die_with_launcher(launcher: str) -> None:
    """A rank never outlives its launcher, not even a SIGKILLed one."""
    if not launcher.isdigit() or os.getppid() != int(launcher):
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)


def write_stacks(page: Page) -> None:
    """All Python stacks on STACK_SIGNAL, and on a fatal signal, into files beside the page; no GIL needed."""
    stem = page.path.removesuffix(".page")
    on_request = open(stem + ".stacks", "w", encoding="utf-8")  # noqa: SIM115  lives as long as the process
    _kept.append(on_request)
    faulthandler.register(STACK_SIGNAL, file=on_request, all_threads=True)
    page.raise_flag(STACKS_ON_SIGNAL)
    if not faulthandler.is_enabled():
        fatal = open(stem + ".fatal", "w", encoding="utf-8")  # noqa: SIM115  lives as long as the process
        _kept.append(fatal)
        faulthandler.enable(file=fatal, all_threads=True)
