"""Reads many flight-recorder dumps: in several processes where that pays, never with more memory than a dump needs."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial

from rankscope.errors import EvidenceError
from rankscope.evidence.readers.columns import Columns, Kind, KindTable
from rankscope.evidence.readers.record import read_json, read_pickle

LARGEST_DUMP = 1 << 30
LARGE_JOB = 10 << 20
"""Bytes of all dumps together below which more processes cost more than they save."""
_MOST_PROCESSES = 16
_FILES_A_TASK = 4
_EXTRA_MEMORY = 4 << 30
"""A few bytes of a hostile pickle can ask for any amount; a real dump of a gigabyte needs less than this."""

_Answer = tuple[list[Kind], list[Columns | str]]


def _nothing() -> None:
    pass


def read_dumps(
    paths: Sequence[str], newest: int | None = None, meanwhile: Callable[[], None] = _nothing
) -> tuple[KindTable, list[Columns | str]]:
    """The record in each file, or why there is none, in the order of the paths; and the kinds they refer to.

    With `newest`, records of a large job may lack older calls (see `read_pickle`). Where other processes read,
    `meanwhile` is called here once they have begun.
    """
    table = KindTable()
    found: list[Columns | str] = []
    for kinds, answers in _answers(paths, newest, meanwhile):
        numbers = table.adopt(kinds)
        same = numbers == list(range(len(numbers)))
        for answer in answers:
            if isinstance(answer, str):
                found.append(answer)
                continue
            renumbered = answer.kinds if same else array("I", map(numbers.__getitem__, answer.kinds))
            found.append(replace(answer, kinds=renumbered, groups=table.shared_groups(answer.groups)))
    return table, found


def read_dump_bytes(data: bytes) -> tuple[KindTable, Columns]:
    """One dump that is in memory already, as from standard input. Raises EvidenceError when it is none."""
    table = KindTable()
    with _bounded_memory(), _no_collection():
        return table, _parse(data, table)


def _answers(paths: Sequence[str], newest: int | None, meanwhile: Callable[[], None]) -> Iterator[_Answer]:
    workers = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(paths) // _FILES_A_TASK)
    large = sum(map(_size, paths)) >= LARGE_JOB
    read = partial(_read_some, newest=newest if large else None)
    if workers < 2 or not large:
        yield read(paths)
        return
    tasks = [paths[at : at + _FILES_A_TASK] for at in range(0, len(paths), _FILES_A_TASK)]
    done = 0
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(_start_method())) as pool:
            answers = pool.map(read, tasks)
            meanwhile()
            for answer in answers:
                yield answer
                done += 1
    except BrokenProcessPool:
        # A process was killed, as by a memory limit: the rest is read here, one after another.
        for task in tasks[done:]:
            yield read(task)


def _start_method() -> str:
    """A fork is there at once, with all modules, but may copy a lock that another thread holds."""
    return "fork" if len(os.listdir("/proc/self/task")) == 1 else "spawn"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read_some(paths: Iterable[str], newest: int | None) -> _Answer:
    table = KindTable()
    answers: list[Columns | str] = []
    with _bounded_memory(), _no_collection():
        for path in paths:
            try:
                answers.append(_parse(_read(path), table, newest))
            except EvidenceError as error:
                answers.append(str(error))
            except MemoryError:
                answers.append("the flight record asks for more memory than a dump can need: refused")
            except OSError as error:
                answers.append(f"cannot be read: {error.strerror}")
    return table.kinds, answers


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        # Asked before it is read: a file can be larger than the memory, and need no room on the disk.
        size = os.fstat(file.fileno()).st_size
        data = file.read(LARGEST_DUMP + 1) if size <= LARGEST_DUMP else b""
    if max(size, len(data)) > LARGEST_DUMP:
        raise EvidenceError(f"larger than {LARGEST_DUMP >> 20} MB: no flight recorder writes that")
    return data


def _parse(data: bytes, table: KindTable, newest: int | None = None) -> Columns:
    return read_pickle(data, table, newest) if data[:1] == b"\x80" else read_json(data, table)


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + _EXTRA_MEMORY
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


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A dump is hundreds of thousands of objects without a cycle: looking for cycles among them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
