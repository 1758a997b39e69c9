"""Paths → one Evidence: everything that can be read in them, put together rank by rank."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence
from rankscope.evidence.readers.assemble import Found, assemble
from rankscope.evidence.readers.dump_files import LARGEST_DUMP, read_dump_bytes, read_dumps
from rankscope.evidence.readers.dumps import NEWEST, rank_dumps
from rankscope.evidence.readers.error_file import looks_like_error_file, read_error_file
from rankscope.evidence.readers.kinds import HEAD, FileKind, kind_of
from rankscope.evidence.readers.log import STANDARD_INPUT
from rankscope.evidence.readers.log_names import rank_of_log
from rankscope.evidence.readers.py_spy_dump import read_py_spy_json, read_py_spy_text
from rankscope.evidence.readers.refused import Refused
from rankscope.evidence.readers.run_folder import plan_of
from rankscope.evidence.regular import LEADS_OUT, leads_out, open_regular
from rankscope.evidence.store import load_evidence

_MOST_FILES = 200_000
_LARGEST_TEXT = 256 << 20
"""Of files that are read whole: stacks and error files are far smaller."""


def gather(
    paths: Sequence[str],
    standard_input: BinaryIO | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    reading: Callable[[str], None] = lambda _file: None,
) -> Evidence:
    """All that the paths hold; `-` is standard input. Evidence without a rank, where nothing in them can be read.

    What cannot be used is named in `refused`; the rest counts. `meanwhile` is called while other processes read,
    where there is so much that they do; `reading` with every file that is about to be read.
    """
    found = Found()
    for path in paths:
        if path == "-":
            _take_stream(standard_input, found)
        else:
            for file in _files(path, found):
                reading(file)
                _take_file(file, found)
    _take_dumps(found, meanwhile)
    return assemble(found)


def _files(path: str, found: Found) -> Iterable[str]:
    """The files to read; of a run, what its own folder says comes first."""
    plan = plan_of(Path(path))
    if plan is None:
        return _walk(path, found) if os.path.isdir(path) else (path,)
    found.evidence += plan.evidence
    found.refused += plan.refused
    found.notes.update(plan.notes)
    if plan.verdict is not None:
        found.verdict = plan.verdict
    return plan.files


def _walk(path: str, found: Found) -> Iterator[str]:
    count = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            count += 1
            if count > _MOST_FILES:
                found.refused.append(Refused(path, f"holds more than {_MOST_FILES} files: the rest was not read"))
                return
            file = os.path.join(folder, name)
            if os.path.islink(file) and leads_out(file, path):
                found.refused.append(Refused(file, LEADS_OUT))
                continue
            yield file


def _take_file(path: str, found: Found) -> None:
    try:
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            head = file.read(HEAD)
            kind = kind_of(head)
            if isinstance(kind, str):
                found.refused.append(Refused(path, kind))
                return
            if kind is FileKind.FLIGHT:
                found.dump_names.append(path)
            elif kind is FileKind.NOT_EVIDENCE:
                found.refused.append(Refused(path, "is written beside the evidence of a run: give the run's folder"))
            else:
                if kind is not FileKind.LOG and kind is not FileKind.EVIDENCE and about.st_size > _LARGEST_TEXT:
                    raise EvidenceError(f"larger than {_LARGEST_TEXT >> 20} MB: no {kind.value} is")
                file.seek(0)
                _take(kind, file, path, about.st_mtime, found)
        found.newest = max(found.newest, about.st_mtime)
    except EvidenceError as error:
        found.refused.append(Refused(path, str(error)))
    except OSError as error:
        found.refused.append(Refused(path, f"cannot be read: {error.strerror}"))


def _take_stream(stream: BinaryIO | None, found: Found) -> None:
    """Standard input: a log in a stream, anything else whole."""
    if stream is None:
        return
    head = stream.read(HEAD)
    kind = kind_of(head)
    try:
        if isinstance(kind, str):
            found.refused.append(Refused(STANDARD_INPUT, kind))
        elif kind is FileKind.FLIGHT:
            data = head + stream.read(LARGEST_DUMP)
            table, columns = read_dump_bytes(data)
            read = rank_dumps([f"{STANDARD_INPUT}, rank 0"], [columns], table)
            found.dumps += read.dumps
            found.refused += read.refused
            found.notes["rank of the dump on standard input"] = "not told by a name: taken as rank 0"
        elif kind is not FileKind.NOT_EVIDENCE:
            _take(kind, _Joined(head, stream), STANDARD_INPUT, time.time(), found)
    except EvidenceError as error:
        found.refused.append(Refused(STANDARD_INPUT, str(error)))


class _Joined(io.RawIOBase):
    """A stream of which the beginning has been read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        head, self._head = self._head, b""
        return head + self._rest.read(size if size < 0 else max(0, size - len(head)))


def _take(kind: FileKind, file: BinaryIO | _Joined, name: str, written_at: float, found: Found) -> None:
    if kind is FileKind.LOG:
        found.has_logs = True
        found.logs.read(file, name, rank_of_log(name), written_at)  # type: ignore[arg-type]
        return
    if kind is FileKind.EVIDENCE:
        found.evidence.append((name, load_evidence(Path(name))))
        return
    data = file.read(_LARGEST_TEXT + 1)
    if len(data) > _LARGEST_TEXT:
        raise EvidenceError(f"larger than {_LARGEST_TEXT >> 20} MB: no {kind.value} is")
    if kind is FileKind.STACKS_JSON:
        found.stacks += [(name, each) for each in read_py_spy_json(data, written_at)]
    elif kind is FileKind.STACKS_TEXT:
        text = data.decode("utf-8", "replace")
        found.stacks += [(name, each) for each in read_py_spy_text(text, written_at)]
    else:
        _take_error(data, name, written_at, found)


def _take_error(data: bytes, name: str, written_at: float, found: Found) -> None:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"is damaged or cut off: {error}") from error
    if not isinstance(document, dict) or not looks_like_error_file(document):
        # JSON of somebody else, as a logger writes it.
        found.has_logs = True
        found.logs.read(io.BytesIO(data), name, rank_of_log(name), written_at)
        return
    exception, code = read_error_file(document)
    found.errors.append((name, exception, code))


def _take_dumps(found: Found, meanwhile: Callable[[], None]) -> None:
    if not found.dump_names:
        return
    names = found.dump_names
    table, columns = read_dumps(names, NEWEST, meanwhile)
    read = rank_dumps(names, columns, table)
    if not read.enough:
        table, columns = read_dumps(names)
        read = rank_dumps(names, columns, table)
    found.dumps += read.dumps
    found.refused += read.refused
