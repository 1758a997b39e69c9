"""Waits until a rank has ended, without asking ten times a second whether one has."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable


class Departures:
    """The ends of some processes, each told once. Where the kernel does not tell of them, nothing is waited for."""

    def __init__(self) -> None:
        self._ends = select.poll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ends.register(self._woken, select.POLLIN)
        self._descriptors: set[int] = set()
        self._told = False

    def expect(self, pids: Iterable[int]) -> None:
        """Children of this process that have not been waited for; those expected before are forgotten."""
        for descriptor in list(self._descriptors):
            self._forget(descriptor)
        self._told = True
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                self._told = False
                return
            self._descriptors.add(descriptor)
            self._ends.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Returns when a process has ended, when somebody calls `wake`, or after that time."""
        if not self._told:
            return
        for descriptor, _events in self._ends.poll(1000 * seconds):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
            else:
                self._forget(descriptor)

    def wake(self) -> None:
        """From any thread."""
        os.eventfd_write(self._woken, 1)

    def _forget(self, descriptor: int) -> None:
        self._ends.unregister(descriptor)
        self._descriptors.discard(descriptor)
        os.close(descriptor)
