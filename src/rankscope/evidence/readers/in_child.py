"""Reads what may never end in a process that can be ended: a few bytes can ask for years of hashing and comparing."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
_ONE_LIMIT = threading.RLock()
_START_S = 5.0
"""What a new interpreter may take to start."""
_LEAST_MEMORY = 384 << 20
_MOST_MEMORY = 4 << 30
_PER_BYTE = 32
"""A real dump needs about a fifth of it."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """The function's result; both must be picklable. Raises TimeoutError, and EOFError where the child died of it."""
    if len(os.listdir("/proc/self/task")) > 1:
        return _in_new_interpreter(seconds, function)  # a process with several threads cannot be forked safely
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


def _in_new_interpreter(seconds: float, function: Callable[[], T]) -> T:
    import multiprocessing  # sockets, subprocesses and more, which a fork does not need

    spawn = multiprocessing.get_context("spawn")
    receive, send = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_answer, args=(send, function), daemon=True)
    child.start()
    send.close()
    try:
        if not receive.poll(seconds + _START_S):
            raise TimeoutError
        result: T = receive.recv()
        return result
    finally:
        child.kill()
        child.join()
        receive.close()


def _answer(send: Connection, function: Callable[[], object]) -> None:
    send.send(function())


def limit_processor_time(seconds: float) -> None:
    """This process is ended by the kernel after so much more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


@contextlib.contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """Of a reader of so many bytes: more than objects made of them can need is a MemoryError.

    A few bytes of a hostile pickle can ask for any amount. The limit is of the whole process: one at a time.
    """
    with _ONE_LIMIT:
        yield from _limited(size)


def _limited(size: int) -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + min(_MOST_MEMORY, _LEAST_MEMORY + _PER_BYTE * size)
    if before != resource.RLIM_INFINITY:
        limit = min(limit, before)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


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
