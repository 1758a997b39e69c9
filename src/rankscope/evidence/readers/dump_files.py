"""Reads many flight-recorder dumps: in several processes where that pays, never with more memory than a dump needs."""

from __future__ import annotations

import contextlib
import gc
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.readers.columns import Columns, Kind, KindTable
from rankscope.evidence.readers.in_child import bounded_memory, limit_processor_time, within
from rankscope.evidence.readers.record import read_json, read_pickle
from rankscope.evidence.regular import read_regular

LARGEST_DUMP = 1 << 30
LARGE_JOB = 10 << 20
"""Bytes of all dumps together below which more processes cost more than they save."""
_MOST_PROCESSES = 16
_FILES_A_TASK = 4
_LEAST_TIME_S = 10.0
_BYTES_A_SECOND = 1 << 20
"""A tenth of what a slow machine reads."""
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
    try:
        answer = within(_LEAST_TIME_S + len(data) / _BYTES_A_SECOND, partial(_read_bytes, data))
    except (TimeoutError, EOFError) as error:
        raise EvidenceError("takes too long to read: no flight recorder writes that") from error
    if isinstance(answer, str):
        raise EvidenceError(answer)
    return answer


def _read_bytes(data: bytes) -> tuple[KindTable, Columns] | str:
    table = KindTable()
    try:
        with bounded_memory(len(data)), _no_collection():
            return table, _parse(data, table)
    except EvidenceError as error:
        return str(error)


def _answers(paths: Sequence[str], newest: int | None, meanwhile: Callable[[], None]) -> Iterator[_Answer]:
    workers = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(paths) // _FILES_A_TASK)
    large = sum(map(_size, paths)) >= LARGE_JOB
    read = partial(_read_some, newest=newest if large else None)
    if workers < 2 or not large:
        yield _read_in_time(paths, read)
        return
    yield from _read_side_by_side(paths, read, workers, meanwhile)


def _read_side_by_side(
    paths: Sequence[str], read: Callable[[Sequence[str]], _Answer], workers: int, meanwhile: Callable[[], None]
) -> Iterator[_Answer]:
    # Only a large job needs them: they bring logging, sockets and subprocesses.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    tasks = [paths[at : at + _FILES_A_TASK] for at in range(0, len(paths), _FILES_A_TASK)]
    done = 0
    try:
        with ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context(_start_method()),
            initializer=limit_processor_time,
            initargs=(_time_for(paths),),
        ) as pool:
            answers = pool.map(read, tasks)
            meanwhile()
            for answer in answers:
                yield answer
                done += 1
    except BrokenProcessPool:
        # A process was killed, as by a memory limit: the rest is read here, one after another.
        for task in tasks[done:]:
            yield _read_in_time(task, read)


def _read_in_time(paths: Sequence[str], read: Callable[[Sequence[str]], _Answer]) -> _Answer:
    """One that takes for ever is found by reading them one by one."""
    limit = _time_for(paths)
    try:
        return within(limit, partial(read, paths))
    except (TimeoutError, EOFError):
        pass
    table = KindTable()
    found: list[Columns | str] = []
    for path in paths:
        limit = _time_for([path])
        try:
            kinds, answers = within(limit, partial(read, [path]))
        except TimeoutError:
            found.append(f"takes longer than {limit:.0f} s to read: no flight recorder writes that")
            continue
        except EOFError:
            found.append("the reader died of it: no flight recorder writes that")
            continue
        numbers = table.adopt(kinds)
        found += (
            a if isinstance(a, str) else replace(a, kinds=array("I", map(numbers.__getitem__, a.kinds)))
            for a in answers
        )
    return table.kinds, found


def _time_for(paths: Sequence[str]) -> float:
    return _LEAST_TIME_S + sum(map(_size, paths)) / _BYTES_A_SECOND


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
    paths = tuple(paths)
    with bounded_memory(sum(map(_size, paths))), _no_collection():
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
    if _size(path) > LARGEST_DUMP:
        raise EvidenceError(f"larger than {LARGEST_DUMP >> 20} MB: no flight recorder writes that")
    return read_regular(path, LARGEST_DUMP)


def _parse(data: bytes, table: KindTable, newest: int | None = None) -> Columns:
    return read_pickle(data, table, newest) if data[:1] == b"\x80" else read_json(data, table)


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
