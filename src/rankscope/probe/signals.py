"""What lets others look at this process: stacks on a signal and on a crash, permission to trace; and how it ends."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal

from rankscope.probe.kept_files import KeptFile, kept
from rankscope.probe.page import STACKS_ON_SIGNAL, Page

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = (1 << 64) - 1

STACK_SIGNAL = signal.SIGRTMIN + 11
"""Far from what programs, profilers and schedulers use."""

_armed: list[bool] = []
"""Whether the handler of fatal signals is ours, here and in processes that are forked from here."""


def _prctl(option: int, value: int) -> None:
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
    for file in kept:
        file.give_up()  # of the process that this one was forked from
    kept[:] = [KeptFile(stem + ".stacks", lambda fd: faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True))]
    page.raise_flag(STACKS_ON_SIGNAL)
    if _armed or not faulthandler.is_enabled():
        kept.append(KeptFile(stem + ".fatal", lambda fd: faulthandler.enable(file=fd, all_threads=True)))
        _armed[:] = [True]


def keep_forever(thing: object) -> None:
    """Never destroyed, not even at exit: what a mapping would close then may be the program's file by that time."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
