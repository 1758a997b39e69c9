"""Paths → one Evidence: everything that can be read in them, put together rank by rank."""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence import sources
from rankscope.evidence.model import (
    SCHEMA,
    Evidence,
    Exit,
    Frame,
    HostEvidence,
    Log,
    RaisedException,
    RankEvidence,
    Source,
    StackSample,
)
from rankscope.evidence.readers.dump_files import LARGEST_DUMP, read_dump_bytes, read_dumps
from rankscope.evidence.readers.dumps import RankDump, rank_dumps, rank_in_name
from rankscope.evidence.readers.error_file import looks_like_error_file, read_error_file
from rankscope.evidence.readers.kinds import HEAD, FileKind, kind_of
from rankscope.evidence.readers.log import LogReader, ReadLogs
from rankscope.evidence.readers.log_names import rank_of_log
from rankscope.evidence.readers.py_spy_dump import ProcessStacks, read_py_spy_json, read_py_spy_text
from rankscope.evidence.readers.refused import Refused
from rankscope.evidence.stacks import stack_of_fatal_error
from rankscope.evidence.store import load_evidence

_MOST_FILES = 200_000
_LARGEST_TEXT = 256 << 20
"""Of files that are read whole: stacks and error files are far smaller."""


@dataclass(slots=True)
class _Found:
    """What has been read so far."""

    dump_names: list[str] = field(default_factory=list)
    dumps: tuple[RankDump, ...] = ()
    stacks: list[tuple[str, ProcessStacks]] = field(default_factory=list)
    errors: list[tuple[str, RaisedException, int | None]] = field(default_factory=list)
    logs: LogReader = field(default_factory=LogReader)
    has_logs: bool = False
    evidence: list[tuple[str, Evidence]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    newest: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)


def gather(paths: Sequence[str], standard_input: BinaryIO | None = None) -> Evidence:
    """All that the paths hold; `-` is standard input. Raises EvidenceError when nothing in them can be read.

    What cannot be used is named in `refused`; the rest counts.
    """
    found = _Found()
    for path in paths:
        if path == "-":
            _take_stream(standard_input, found)
        else:
            for file in _files(path, found):
                _take_file(file, found)
    _take_dumps(found)
    evidence = _evidence(found)
    if not evidence.ranks and evidence.log is None:
        why = "; ".join(map(str, found.refused[:5])) or "no file in them"
        raise EvidenceError(f"nothing to diagnose in {', '.join(paths)}: {why}")
    return evidence


def _files(path: str, found: _Found) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    newest = _newest_evidence(Path(path))
    if newest is not None:
        # The folder of a run: its evidence holds what the files beside it would tell.
        yield str(newest)
        return
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
            yield os.path.join(folder, name)


def _newest_evidence(path: Path) -> Path | None:
    """A run keeps one folder of evidence per attempt; the last attempt is what ended it."""
    attempts = sorted((path / "evidence").glob("attempt_*/evidence.json"), key=lambda file: file.stat().st_mtime)
    if attempts:
        return attempts[-1]
    if (path / "run.json").exists() and (path / "verdict.json").exists():
        raise EvidenceError(f"'{path}' holds a run without evidence: nothing went wrong in it, or the disk was full")
    return path / "evidence.json" if (path / "evidence.json").exists() else None


def _take_file(path: str, found: _Found) -> None:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            found.refused.append(Refused(path, "is no plain file"))
            return
        with open(path, "rb") as file:
            head = file.read(HEAD)
            kind = kind_of(head)
            if isinstance(kind, str):
                found.refused.append(Refused(path, kind))
                return
            if kind is FileKind.FLIGHT:
                found.dump_names.append(path)
            elif kind is not FileKind.NOT_EVIDENCE:
                file.seek(0)
                _take(kind, file, path, about.st_mtime, found)
        found.newest = max(found.newest, about.st_mtime)
    except EvidenceError as error:
        found.refused.append(Refused(path, str(error)))
    except OSError as error:
        found.refused.append(Refused(path, f"cannot be read: {error.strerror}"))


def _take_stream(stream: BinaryIO | None, found: _Found) -> None:
    """Standard input: a log in a stream, anything else whole."""
    if stream is None:
        return
    head = stream.read(HEAD)
    kind = kind_of(head)
    try:
        if isinstance(kind, str):
            found.refused.append(Refused("standard input", kind))
        elif kind is FileKind.FLIGHT:
            data = head + stream.read(LARGEST_DUMP)
            table, columns = read_dump_bytes(data)
            found.dumps, refused = rank_dumps(["standard input, rank 0"], [columns], table)
            found.refused += refused
            found.notes["rank of the dump on standard input"] = "not told by a name: taken as rank 0"
        elif kind is not FileKind.NOT_EVIDENCE:
            _take(kind, _Joined(head, stream), "standard input", time.time(), found)
    except EvidenceError as error:
        found.refused.append(Refused("standard input", str(error)))


class _Joined(io.RawIOBase):
    """A stream of which the beginning has been read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        head, self._head = self._head, b""
        return head + self._rest.read(size if size < 0 else max(0, size - len(head)))


def _take(kind: FileKind, file: BinaryIO | _Joined, name: str, written_at: float, found: _Found) -> None:
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


def _take_error(data: bytes, name: str, written_at: float, found: _Found) -> None:
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


def _take_dumps(found: _Found) -> None:
    if not found.dump_names:
        return
    table, columns = read_dumps(found.dump_names)
    dumps, refused = rank_dumps(found.dump_names, columns, table)
    found.dumps += dumps
    found.refused += refused


@dataclass(slots=True)
class _Rank:
    """One rank while its pieces are put together."""

    pid: int = 0
    host: str = ""
    dump: RankDump | None = None
    stacks: list[StackSample] = field(default_factory=list)
    exceptions: list[RaisedException] = field(default_factory=list)
    exit: Exit | None = None
    log: Log | None = None
    fatal: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)


def _evidence(found: _Found) -> Evidence:
    logs = found.logs.finish()
    ranks: dict[int, _Rank] = {}
    for dump in found.dumps:
        ranks.setdefault(dump.rank, _Rank()).dump = dump
    if found.has_logs:
        _add_logs(logs, ranks)
    _add_errors(found, ranks)
    _add_stacks(found, ranks)
    times = [dump.last_at for dump in found.dumps] + [log.last_at for log in _logs(logs) if log.last_at is not None]
    collected_at = max([found.newest, *times, 0.0])
    begun = [dump.first_at for dump in found.dumps if dump.first_at] + [
        log.first_at for log in _logs(logs) if log.first_at is not None
    ]
    started_at = min(begun, default=collected_at)
    seen = [_rank_evidence(number, rank, started_at) for number, rank in sorted(ranks.items())]
    frames = [frame for each in seen for frame in _frames_of(each)]
    evidence = Evidence(
        schema=SCHEMA,
        collected_at=collected_at,
        started_at=started_at,
        trigger="files",
        world_size=_world_size(found, logs, ranks),
        ranks=tuple(seen),
        hosts=_hosts(logs),
        sources=_unchanged(sources.read_sources(frames), collected_at),
        log=logs.others,
        missing=found.notes,
        refused=tuple(map(str, found.refused)),
    )
    for name, saved in found.evidence:
        evidence = _joined(saved, evidence, name)
    return evidence


def _logs(logs: ReadLogs) -> list[Log]:
    return [*logs.ranks.values(), *([logs.others] if logs.others is not None else [])]


def _add_logs(logs: ReadLogs, ranks: dict[int, _Rank]) -> None:
    for number, log in logs.ranks.items():
        rank = ranks.setdefault(number, _Rank())
        rank.log = log
        rank.exceptions += log.exceptions
        rank.fatal = logs.fatal.get(number, ())
    for number, (exit_, pid, host) in logs.ends.items():
        rank = ranks.setdefault(number, _Rank())
        rank.exit, rank.pid, rank.host = exit_, pid, host
    for number, pid in logs.pids.items():
        rank = ranks.setdefault(number, _Rank())
        rank.pid = rank.pid or pid
    _give_lone_traceback(logs, ranks)


def _give_lone_traceback(logs: ReadLogs, ranks: dict[int, _Rank]) -> None:
    """One rank failed by the launcher's words, and one traceback carries no rank: it is that rank's."""
    others = [error for error in (logs.others.exceptions if logs.others else ()) if not _launchers_own(error)]
    failed = [
        rank for rank in ranks.values() if rank.exit is not None and rank.exit.code > 0 and not rank.exit.by_launcher
    ]
    if len(failed) == 1 and len(others) == 1 and not failed[0].exceptions:
        failed[0].exceptions += others


def _launchers_own(error: RaisedException) -> bool:
    return error.type.rpartition(".")[2] in ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")


def _add_errors(found: _Found, ranks: dict[int, _Rank]) -> None:
    for name, exception, code in found.errors:
        number = rank_of_log(name)
        if number is None:
            if len(found.errors) > 1 or ranks:
                found.refused.append(Refused(name, "which rank wrote it is not known: keep torchrun's folders"))
                continue
            number = 0
            found.notes["rank of the error file"] = "not told by its folder: taken as rank 0"
        rank = ranks.setdefault(number, _Rank())
        rank.exceptions.append(exception)
        if rank.exit is None:
            rank.exit = Exit(code or 1, exception.at or 0.0, by_launcher=False)


def _add_stacks(found: _Found, ranks: dict[int, _Rank]) -> None:
    pids = {rank.pid: number for number, rank in ranks.items() if rank.pid}
    unknown: dict[int, list[tuple[str, ProcessStacks]]] = {}
    for name, stacks in found.stacks:
        number = stacks.rank if stacks.rank is not None else pids.get(stacks.pid)
        if number is None and name != "standard input":
            alone = sum(other == name for other, _ in found.stacks) == 1
            number = rank_in_name(name) if alone and not _names_pid(name, stacks.pid) else None
        if number is None:
            unknown.setdefault(stacks.pid, []).append((name, stacks))
            continue
        rank = ranks.setdefault(number, _Rank())
        rank.stacks.append(stacks.sample)
        rank.pid = rank.pid or stacks.pid
    free = (number for number in range(10**6) if number not in ranks)
    for pid, dumps in unknown.items():
        number = next(free)
        rank = ranks.setdefault(number, _Rank(pid=pid))
        rank.stacks += [stacks.sample for _, stacks in dumps]
        rank.missing["rank"] = f"not told by the dump of process {pid}: numbered {number} in the order given"
        found.notes["ranks of the stacks"] = "not told by the dumps: processes are numbered in the order given"


def _names_pid(name: str, pid: int) -> bool:
    return rank_in_name(name) == pid


def _rank_evidence(number: int, rank: _Rank, started_at: float) -> RankEvidence:
    dump = rank.dump
    missing = dict(rank.missing)
    if dump is None:
        missing["collectives"] = "no flight-recorder dump of this rank was given"
    elif dump.left_out:
        missing["older collectives"] = f"{dump.left_out} that all ranks made alike are left out"
    if not rank.stacks:
        missing["stacks"] = "no stack dump of this rank was given"
    log = rank.log
    lines = tuple(line.text for line in log.notable) if log is not None else ()
    return RankEvidence(
        rank=number,
        local_rank=number,
        host=rank.host,
        pid=rank.pid,
        started_at=started_at,
        exit=rank.exit,
        stacks=tuple(sorted(rank.stacks, key=lambda sample: sample.at)),
        collectives=dump.collectives if dump is not None else (),
        last_enqueued=dump.last_enqueued if dump is not None else {},
        last_completed=dump.last_completed if dump is not None else {},
        groups=dump.groups if dump is not None else (),
        exceptions=tuple(rank.exceptions),
        crash_stack=stack_of_fatal_error("\n".join(rank.fatal)) if rank.fatal else (),
        log=log,
        error_tail=tuple(dict.fromkeys((*lines, *rank.fatal[:60], *(log.tail if log is not None else ())))),
        missing=missing,
    )


def _world_size(found: _Found, logs: ReadLogs, ranks: dict[int, _Rank]) -> int:
    named = [
        rank
        for dump in found.dumps
        for group in dump.groups
        if _default(group.name, group.description)
        for rank in group.ranks
    ]
    declared = logs.world_size or 0
    return max([max(ranks, default=-1) + 1, max(named, default=-1) + 1, declared if declared <= 100_000 else 0])


def _default(name: str, description: str) -> bool:
    return name == "0" or description == "default_pg"


def _hosts(logs: ReadLogs) -> tuple[HostEvidence, ...]:
    if not logs.kernel:
        return ()
    lines = tuple(line.text for line in logs.kernel)
    return (HostEvidence(host="", kernel_log=lines, missing={"gpus": "not told by logs"}),)


def _frames_of(seen: RankEvidence) -> Iterator[Frame]:
    for sample in seen.stacks[-1:]:
        yield from (frame for thread in sample.threads for frame in thread.frames if frame.user)
    for error in seen.exceptions:
        yield from (frame for frame in error.frames if frame.user)
    known: set[int] = set()
    for entry in seen.collectives[-400:]:
        if id(entry.frames) not in known:
            known.add(id(entry.frames))
            yield from (frame for frame in entry.frames if frame.user)


def _unchanged(found: tuple[Source, ...], collected_at: float) -> tuple[Source, ...]:
    """Sources that were not edited after the files were written: line numbers of another version would mislead."""
    kept = []
    for source in found:
        try:
            if os.stat(source.file).st_mtime <= collected_at:
                kept.append(source)
        except OSError:
            continue
    return tuple(kept)


def _joined(saved: Evidence, more: Evidence, name: str) -> Evidence:
    """The evidence of a run, with what other files add to it. What the run itself saw counts more."""
    extra = {seen.rank: seen for seen in more.ranks}
    ranks = []
    for seen in saved.ranks:
        other = extra.pop(seen.rank, None)
        if other is not None:
            seen = replace(  # noqa: PLW2901
                seen,
                stacks=seen.stacks or other.stacks,
                collectives=seen.collectives or other.collectives,
                last_enqueued=seen.last_enqueued or other.last_enqueued,
                last_completed=seen.last_completed or other.last_completed,
                groups=seen.groups or other.groups,
                exceptions=seen.exceptions or other.exceptions,
                exit=seen.exit or other.exit,
                log=seen.log or other.log,
                error_tail=(*seen.error_tail, *other.error_tail),
            )
        ranks.append(seen)
    return replace(
        saved,
        ranks=tuple(sorted((*ranks, *extra.values()), key=lambda seen: seen.rank)),
        world_size=max(saved.world_size, *(rank + 1 for rank in extra), 0) if extra else saved.world_size,
        hosts=(*saved.hosts, *more.hosts),
        sources=saved.sources or more.sources,
        log=saved.log or more.log,
        missing={**more.missing, **saved.missing},
        refused=(*saved.refused, *more.refused),
        trigger=saved.trigger if saved.trigger != "files" else f"files and {name}",
    )
