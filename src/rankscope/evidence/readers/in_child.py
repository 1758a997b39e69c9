"""Reads what may never end in a process that can be ended: a few bytes can ask for years of hashing and comparing."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """The function's result, which must be picklable. Raises TimeoutError, and EOFError where the child died of it.

    In a process with several threads, which cannot be forked safely, it is simply called.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        return function()
    receive, send = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _work(send, function)
    os.close(send)
    try:
        answer = _all_of(receive, time.monotonic() + seconds)
    finally:
        os.close(receive)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not answer:
        raise EOFError("the reader died")
    result: T = pickle.loads(answer)
    return result


def limit_processor_time(seconds: float) -> None:
    """This process is ended by the kernel after so much more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _work(send: int, function: Callable[[], T]) -> None:
    code = 1
    try:
        data = pickle.dumps(function(), pickle.HIGHEST_PROTOCOL)
        while data:
            data = data[os.write(send, data) :]
        code = 0
    finally:
        os._exit(code)


def _all_of(receive: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([receive], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(receive, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
