"""What the lines of logs say in numbers: which collective a rank waited in, who was missing, what differed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from rankscope.diagnosis.finding import Recognised
from rankscope.diagnosis.rules.crashes.known_errors import recognise
from rankscope.diagnosis.verdict import SignOfLife
from rankscope.evidence.model import Evidence, Log, LogLine

_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+)")
_STATUS = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)")
_OTHER_TIMEOUT = re.compile(
    r"Timed out waiting \d+ ?ms for (?:recv|send)|Watchdog caught collective operation timeout|Timeout at NCCL work"
    r"|failure detected by watchdog"
)
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running (?:collective: )?CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+))?"
    r".*?OpType=(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[^\]]*)\])?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_STORE = re.compile(
    r"store based barrier to initialize process group for rank: (\d+).*?\(world_size=(\d+), "
    r"(?:num_workers_joined|worker_count)=(\d+)"
    r"|store based barrier to initialize process group for (\d+) ranks, rank: (\d+) .*?worker_count=(\d+)"
)
_MASTER = re.compile(r"ncclUniqueId from \[0\]|Timeout waiting for key: default_pg/0/0|store->get\('0'\) got error")
_CLOSED_BY = re.compile(r"Connection closed by localRank (\d+)")
_MISSING = re.compile(r"Rank (\d+) failed to pass monitoredBarrier|Ranks ([\d, ]+) failed to pass monitoredBarrier")

_QUARTER_S = 900.0
_WIDEST_ZONES_S = 26 * 3600.0
_WRITTEN_AT_ONCE_S = 3.0
"""A line is in its file so soon after the time that it carries."""


class TimedOut(msgspec.Struct, frozen=True):
    """A rank that waited in a collective until its time was over."""

    rank: int
    seq: int | None
    op: str
    numel: int | None
    enqueued: int | None
    """The newest collective that the rank had entered."""
    line: LogLine


class Fingerprint(msgspec.Struct, frozen=True):
    """What a rank ran where the ranks differed, as TORCH_DISTRIBUTED_DEBUG=DETAIL prints it."""

    rank: int
    op: str
    shape: str
    dtype: str
    seq: int | None

    def signature(self) -> tuple[str, str, str]:
        return self.op, self.shape, self.dtype


class StoreBarrier(msgspec.Struct, frozen=True):
    world: int
    joined: int
    ranks: tuple[int, ...]
    """Those that said they wait."""


def all_lines(evidence: Evidence) -> Iterator[tuple[int | None, LogLine]]:
    """The notable lines of all logs, with the rank that wrote each, in their order."""
    found = [(seen.rank, line) for seen in evidence.ranks if seen.log is not None for line in seen.log.notable]
    lines: list[tuple[int | None, LogLine]] = [*found]
    if evidence.log is not None:
        lines += [(None, line) for line in evidence.log.notable]
    yield from sorted(lines, key=lambda pair: (pair[1].at is None, pair[1].at or 0.0, pair[1].order))


def known_messages(evidence: Evidence, most: int = 40) -> tuple[Recognised, ...]:
    """Each kind of known message of each rank once."""
    found: dict[tuple[int | None, str], Recognised] = {}
    for rank, line in all_lines(evidence):
        message = recognise(line.text)
        if message is None:
            continue
        key = (rank, message.name)
        if key in found:
            continue
        text = line.text.strip()
        short = text if len(text) <= 240 else text[:237] + "..."
        found[key] = Recognised(rank, short, message.name, message.role, line.count, line.at)
        if len(found) >= most:
            break
    return tuple(found.values())


def signs_of_life(evidence: Evidence) -> tuple[SignOfLife, ...]:
    """The last line of each rank that has a log, the longest silent first."""
    end = log_end(evidence)
    shift = _other_zone(evidence)
    signs = [
        SignOfLife(
            rank=seen.rank,
            at=seen.log.last_at,
            silent_s=max(0.0, end - seen.log.last_at) if end is not None and seen.log.last_at is not None else None,
            line=next((text.strip()[:200] for text in reversed(seen.log.tail) if text.strip()), ""),
            ago_s=ago(seen.log, evidence, shift),
        )
        for seen in evidence.ranks
        if seen.log is not None and seen.log.lines
    ]
    return tuple(sorted(signs, key=lambda sign: (-(sign.silent_s or 0.0), sign.rank or 0)))


def ago(log: Log, evidence: Evidence, shift: float = 0.0) -> float | None:
    """How long before the reading the last line was written, by its own time, or by its file's where it has none."""
    at = log.last_at + shift if log.last_at is not None else log.written_at
    return max(0.0, evidence.read_at - at) if evidence.read_at is not None and at is not None else None


def _other_zone(evidence: Evidence) -> float:
    """Seconds to add to the times in the logs, where they are of another time zone than this machine's: the file was
    written last whole quarters of an hour before or after its last line says."""
    end = log_end(evidence)
    written = max((log.written_at for log in _logs(evidence) if log.written_at is not None), default=None)
    if end is None or written is None:
        return 0.0
    shift = round((written - end) / _QUARTER_S) * _QUARTER_S
    return shift if abs(written - end - shift) <= _WRITTEN_AT_ONCE_S and abs(shift) <= _WIDEST_ZONES_S else 0.0


def log_end(evidence: Evidence) -> float | None:
    return max((log.last_at for log in _logs(evidence) if log.last_at is not None), default=None)


def _logs(evidence: Evidence) -> list[Log]:
    logs = [seen.log for seen in evidence.ranks if seen.log is not None]
    return [*logs, evidence.log] if evidence.log is not None else logs


def timed_out(evidence: Evidence) -> dict[int, TimedOut]:
    """Rank → the first time-out in a collective that its log tells of."""
    found: dict[int, TimedOut] = {}
    status: dict[int, int] = {}
    for rank, line in all_lines(evidence):
        if rank is None:
            continue
        if match := _STATUS.search(line.text):
            status.setdefault(rank, int(match[1]))
        work = _WORK.search(line.text)
        if rank in found and (found[rank].seq is not None or work is None):
            continue
        if work is not None:
            found[rank] = TimedOut(rank, int(work[1]), work[2], int(work[3]), None, line)
        elif _OTHER_TIMEOUT.search(line.text):
            found[rank] = TimedOut(rank, None, "", None, None, line)
    return {
        rank: TimedOut(rank, each.seq, each.op, each.numel, status.get(rank), each.line) for rank, each in found.items()
    }


def enqueued_counts(evidence: Evidence) -> dict[int, int]:
    """Rank → the newest collective it had entered, as its watchdog says, time-out of its own or not."""
    found: dict[int, int] = {}
    for rank, line in all_lines(evidence):
        if rank is not None and (match := _STATUS.search(line.text)):
            found.setdefault(rank, int(match[1]))
    return found


def fingerprints(texts: Iterable[str]) -> tuple[Fingerprint, ...]:
    """Rank by rank what ran, where the ranks differed; empty unless two ranks are told."""
    found: dict[int, Fingerprint] = {}
    for text in texts:
        if "CollectiveFingerPrint" not in text:
            continue
        for match in _FINGERPRINT.finditer(text):
            rank = int(match["rank"])
            seq = int(match["seq"]) if match["seq"] else None
            found.setdefault(rank, Fingerprint(rank, match["op"], match["shape"] or "", match["dtype"] or "", seq))
    return tuple(found.values()) if len(found) > 1 else ()


def store_barrier(evidence: Evidence) -> StoreBarrier | None:
    """Who waited for the process group to come about, by the newest words of each."""
    world = joined = 0
    ranks: set[int] = set()
    for _, line in all_lines(evidence):
        if match := _STORE.search(line.text):
            number, size, count = match.group(1, 2, 3) if match[1] else match.group(5, 4, 6)
            ranks.add(int(number))
            world, joined = max(world, int(size)), max(joined, int(count))
    return StoreBarrier(world, joined, tuple(sorted(ranks))) if ranks else None


def named_missing(evidence: Evidence) -> tuple[int, ...]:
    """Ranks that a monitored barrier names."""
    found: set[int] = set()
    for text in _texts(evidence):
        for match in _MISSING.finditer(text):
            found.update(int(number) for number in re.findall(r"\d+", match[1] or match[2]))
    return tuple(sorted(found))


def waited_for_master(evidence: Evidence) -> tuple[int, ...]:
    return tuple(sorted({rank for rank, line in all_lines(evidence) if rank and _MASTER.search(line.text)}))


def died_local_rank(evidence: Evidence) -> int | None:
    """The local rank whose death NCCL noticed, where all that noticed name the same."""
    found = {int(match[1]) for text in _texts(evidence) for match in _CLOSED_BY.finditer(text)}
    return found.pop() if len(found) == 1 else None


def _texts(evidence: Evidence) -> Iterator[str]:
    for _, line in all_lines(evidence):
        yield line.text
    for seen in evidence.ranks:
        yield from (error.message for error in seen.exceptions)
