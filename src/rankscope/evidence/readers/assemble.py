"""What was read of a job, from any number of files → one Evidence, rank by rank."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from rankscope.evidence.installed_program import with_program
from rankscope.evidence.model import (
    SCHEMA,
    Evidence,
    Exit,
    Frame,
    HostEvidence,
    Log,
    RaisedException,
    RankEvidence,
    StackSample,
)
from rankscope.evidence.readers.dumps import RankDump, rank_in_name
from rankscope.evidence.readers.log import LogReader, ReadLogs
from rankscope.evidence.readers.log_names import rank_of_log
from rankscope.evidence.readers.named_sources import read_named_sources
from rankscope.evidence.readers.py_spy_dump import ProcessStacks
from rankscope.evidence.readers.refused import Refused
from rankscope.evidence.readers.run_folder import RunVerdict
from rankscope.evidence.stacks import stack_of_fatal_error
from rankscope.mask import mask_lines

_MOST_FATAL = 60


class Found(msgspec.Struct):
    """What has been read from the paths so far."""

    dump_names: list[str] = msgspec.field(default_factory=list)
    dumps: tuple[RankDump, ...] = ()
    stacks: list[tuple[str, ProcessStacks]] = msgspec.field(default_factory=list)
    errors: list[tuple[str, RaisedException, int | None]] = msgspec.field(default_factory=list)
    logs: LogReader = msgspec.field(default_factory=LogReader)
    has_logs: bool = False
    evidence: list[tuple[str, Evidence]] = msgspec.field(default_factory=list)
    refused: list[Refused] = msgspec.field(default_factory=list)
    newest: float = 0.0
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    verdict: RunVerdict | None = None
    """Of the run whose folder was given."""


class _Rank(msgspec.Struct):
    """One rank while its pieces are put together."""

    pid: int = 0
    host: str = ""
    dump: RankDump | None = None
    stacks: list[StackSample] = msgspec.field(default_factory=list)
    exceptions: list[RaisedException] = msgspec.field(default_factory=list)
    exit: Exit | None = None
    log: Log | None = None
    fatal: tuple[str, ...] = ()
    missing: dict[str, str] = msgspec.field(default_factory=dict)


def assemble(found: Found) -> Evidence:
    """One Evidence of all that was read."""
    logs = found.logs.finish()
    ranks: dict[int, _Rank] = {}
    for dump in found.dumps:
        ranks.setdefault(dump.rank, _Rank()).dump = dump
    if found.has_logs:
        _add_logs(logs, ranks)
    _add_errors(found, ranks)
    _add_stacks(found, ranks)
    if found.verdict is not None:
        _add_exits(found.verdict, ranks)
    times = [dump.last_at for dump in found.dumps] + [log.last_at for log in _logs(logs) if log.last_at is not None]
    told = found.verdict
    collected_at = max([found.newest, *times, (told.ended_at if told is not None else None) or 0.0])
    begun = [told.started_at] if told is not None and told.started_at is not None else []
    begun += [dump.first_at for dump in found.dumps if dump.first_at] + [
        log.first_at for log in _logs(logs) if log.first_at is not None
    ]
    started_at = min(begun, default=collected_at)
    seen = [with_program(_rank_evidence(number, rank, started_at)) for number, rank in sorted(ranks.items())]
    frames = [frame for each in seen for frame in _frames_of(each)]
    evidence = Evidence(
        schema=SCHEMA,
        collected_at=collected_at,
        started_at=started_at,
        trigger="files",
        judged=told.outcome if told is not None else "",
        world_size=_world_size(found, logs, ranks),
        ranks=tuple(seen),
        hosts=_hosts(logs),
        sources=read_named_sources(frames, collected_at),
        log=logs.others,
        missing=found.notes,
        refused=tuple(map(str, found.refused)),
        read_at=time.time(),
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


def _add_exits(told: RunVerdict, ranks: dict[int, _Rank]) -> None:
    """Exit codes that the launcher of the run had seen. A signal counts as the launcher's own, unless the rank is
    blamed for a crash: all ranks of a job that hung are stopped by one."""
    blamed = {culprit.rank for culprit in told.culprits} if told.outcome == "crash" else set()
    for number, code in told.exit_codes.items():
        rank = ranks.setdefault(number, _Rank())
        if code is not None and rank.exit is None:
            rank.exit = Exit(code, told.ended_at or 0.0, by_launcher=code < 0 and number not in blamed)


def _add_errors(found: Found, ranks: dict[int, _Rank]) -> None:
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


def _add_stacks(found: Found, ranks: dict[int, _Rank]) -> None:
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
        error_tail=_told(log, mask_lines(rank.fatal[:_MOST_FATAL])) if log is not None else (),
        missing=missing,
    )


def _told(log: Log, fatal: tuple[str, ...]) -> tuple[str, ...]:
    """The telling lines and the last ones, in the order in which they were written."""
    texts = [line.text for line in log.notable]
    if fatal:
        at = texts.index(fatal[0]) if fatal[0] in texts else len(texts)
        texts = [*texts[:at], *fatal, *(text for text in texts[at:] if text not in fatal)]
    last = set(log.tail)
    return (*(text for text in texts if text not in last), *log.tail)


def _world_size(found: Found, logs: ReadLogs, ranks: dict[int, _Rank]) -> int:
    named = [
        rank
        for dump in found.dumps
        for group in dump.groups
        if _default(group.name, group.description)
        for rank in group.ranks
    ]
    declared = max(logs.world_size or 0, found.verdict.world_size if found.verdict is not None else 0)
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
