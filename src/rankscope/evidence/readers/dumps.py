"""Flight-recorder dumps of many ranks → what each rank entered, from where the ranks may have parted on."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from rankscope.evidence.model import Collective, Group
from rankscope.evidence.readers.columns import RETIRED, STATES, Columns, Kind, KindTable
from rankscope.evidence.readers.refused import Refused

_RANK = re.compile(r"(?i)rank[^0-9a-z]{0,2}(\d+)")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_ENDING = re.compile(r"(?i)(?:\.(?:json|pickle|pkl|dump|trace|txt|bin|log|out|err))+$")

_KEEP_ALL = 40_000
"""Calls of all ranks together up to which nothing is left out."""
_CONTEXT = 24
"""Calls before the ranks parted that every rank keeps."""
_WITNESSES = 16
_LONG_CONTEXT = 400
"""Some ranks keep more of them: they show what all used to do."""
_AFTER = (48, 512)
NEWEST = _LONG_CONTEXT + 64
"""So many of a group's last calls hold all that is kept, unless ranks went on long after they had parted."""
_TAIL = 8
_FINISHED = bytes(number + RETIRED for number in range(len(STATES)))


class RankDump(msgspec.Struct, frozen=True):
    """One rank's dump, with the calls that matter."""

    rank: int
    name: str
    """The file it was read from."""
    collectives: tuple[Collective, ...]
    left_out: int
    """Calls that all ranks of their group made alike, before those that are kept."""
    last_enqueued: dict[str, int]
    last_completed: dict[str, int]
    groups: tuple[Group, ...]
    first_at: float
    last_at: float


class RankDumps(msgspec.Struct, frozen=True):
    dumps: tuple[RankDump, ...]
    refused: tuple[Refused, ...]
    enough: bool
    """False where a call that was skipped in reading would matter: read all of them, and ask again."""


def rank_in_name(path: str) -> int | None:
    """The rank that a file is named after: `nccl_trace_rank_3`, `rank3/stacks.txt`, `dump-3.pkl`."""
    name = os.path.basename(path)
    for text in (name, os.path.basename(os.path.dirname(path))):
        match = _RANK.search(text)
        if match:
            return _sane(match[1])
    match = _LAST_NUMBER.search(_ENDING.sub("", name))
    return _sane(match[1]) if match else None


def _sane(digits: str) -> int | None:
    return int(digits) if len(digits) <= 6 else None


def rank_dumps(names: Sequence[str], columns: Sequence[Columns | str], table: KindTable) -> RankDumps:
    """Each rank's newest dump; the others, and those that cannot be of the rank they are named after, are refused."""
    by_rank, refused = _one_of_each_rank(names, columns, table)
    columns_of = {rank: pair[1] for rank, pair in sorted(by_rank.items())}
    kept, enough = kept_calls(columns_of, table.kinds)
    dumps = [_rank_dump(rank, by_rank[rank][0], read, kept[rank], table.kinds) for rank, read in columns_of.items()]
    return RankDumps(tuple(dumps), tuple(refused), enough)


def _one_of_each_rank(
    names: Sequence[str], columns: Sequence[Columns | str], table: KindTable
) -> tuple[dict[int, tuple[str, Columns]], list[Refused]]:
    refused: list[Refused] = []
    by_rank: dict[int, tuple[str, Columns]] = {}
    owners: dict[tuple[bytes, bytes], str] = {}
    for name, read in sorted(zip(names, columns, strict=True), key=lambda pair: pair[0]):
        if isinstance(read, str):
            refused.append(Refused(name, read))
            continue
        rank = _rank(name, read, table.kinds)
        if isinstance(rank, str):
            refused.append(Refused(name, rank))
            continue
        mark = (read.created_ns.tobytes(), read.kinds.tobytes())
        if len(read) > 0 and mark in owners:
            refused.append(Refused(name, f"the same record as {owners[mark]}, call by call: a copy"))
            continue
        owners[mark] = name
        if rank in by_rank:
            older = min((name, read), by_rank[rank], key=lambda pair: _newest(pair[1]))
            newer = by_rank[rank] if older[1] is read else (name, read)
            refused.append(Refused(older[0], f"an older dump of rank {rank} than {newer[0]}: not used"))
            by_rank[rank] = newer
        else:
            by_rank[rank] = (name, read)
    return by_rank, refused


def _rank(name: str, read: Columns, kinds: Sequence[Kind]) -> int | str:
    named = rank_in_name(name)
    known = next((group.ranks for group in read.groups if group.description == "default_pg" or group.name == "0"), ())
    if named is None:
        return "which rank wrote it is not known: name it after its rank, as in trace_rank_3"
    if known and named not in known:
        return f"named after rank {named}, but the job it describes has ranks {known[0]}-{known[-1]}"
    own = _own_rank(read, kinds)
    if own is not None and own != named:
        return f"named after rank {named}, but its sends and receives are those of rank {own}"
    return named


_MESSAGE = re.compile(r"^(?:send (\d{1,6})->\d+|recv (\d{1,6})<-\d+)$")


def _own_rank(read: Columns, kinds: Sequence[Kind]) -> int | None:
    """The rank whose messages these are, where they are of the default group; in others ranks are numbered anew."""
    found = {
        int(match[1] or match[2])
        for number in set(read.kinds)
        if kinds[number].group == "0" and (match := _MESSAGE.match(kinds[number].op)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _newest(read: Columns) -> int:
    return max(read.created_ns, default=0)


def _rank_dump(rank: int, name: str, read: Columns, kept: Sequence[int], kinds: Sequence[Kind]) -> RankDump:
    times = read.created_ns
    ended = max(read.completed_ns, default=0)
    return RankDump(
        rank=rank,
        name=name,
        collectives=tuple(read.collective(at, kinds[read.kinds[at]]) for at in kept),
        left_out=read.skipped + len(read) - len(kept),
        last_enqueued=read.last_enqueued,
        last_completed=read.last_completed,
        groups=read.groups,
        first_at=read.first_ns / 1e9,
        last_at=max(ended, max(times, default=0)) / 1e9,
    )


def kept_calls(ranks: dict[int, Columns], kinds: Sequence[Kind]) -> tuple[dict[int, Sequence[int]], bool]:
    """For each rank the positions of the calls that can tell anything, and whether none of these was skipped.

    Up to the last call that all ranks of a group made alike, from the same line, the ranks were together: of those
    before it only the newest are kept, which show what the ranks used to do. Unfinished calls are kept always.
    """
    if sum(len(read) + read.skipped for read in ranks.values()) <= _KEEP_ALL:
        return {rank: range(len(read)) for rank, read in ranks.items()}, not any(r.skipped for r in ranks.values())
    witnesses = set(list(ranks)[:: max(1, len(ranks) // _WITNESSES)])
    after = min(max(_KEEP_ALL // len(ranks), _AFTER[0]), _AFTER[1])
    together = _last_together(ranks, kinds)
    groups = [kind.group for kind in kinds]
    p2p = [kind.p2p for kind in kinds]
    kept: dict[int, Sequence[int]] = {}
    enough = True
    for rank, read in ranks.items():
        tail = len(read) - _TAIL
        chosen: list[int] = []
        context = _LONG_CONTEXT if rank in witnesses else _CONTEXT
        low = {group: seq - context for group, seq in together.items()}
        high = {group: seq + after for group, seq in together.items()}
        enough = enough and (read.skipped == 0 or _reaches_back(read, low, groups))
        begin = _first_of_interest(read, low, groups)
        for at in range(begin, len(read)):
            number, seq = read.kinds[at], read.seqs[at]
            group = groups[number]
            if at >= tail or (not p2p[number] and low[group] <= seq <= high[group]) or not read.done(at, group):
                chosen.append(at)
        kept[rank] = chosen
    return kept, enough


def _reaches_back(read: Columns, low: dict[str, int], groups: Sequence[str]) -> bool:
    """Whether every call from `low` on was looked at. Every group has calls that were: see `read_pickle`."""
    if _counts_on(read.seqs) and len(low) == 1:
        return all(read.seqs[0] <= seq for seq in low.values())
    oldest: dict[str, int] = {}
    for number, seq in zip(reversed(read.kinds), reversed(read.seqs), strict=True):
        oldest[groups[number]] = seq
    return all(seq <= low[group] for group, seq in oldest.items())


def _first_of_interest(read: Columns, low: dict[str, int], groups: Sequence[str]) -> int:
    """The first call that is not finished or not long before the parting: a ring is mostly what lies before it."""
    finished = len(read.flags) - len(read.flags.lstrip(_FINISHED))
    seqs = read.seqs
    lowest = min((low[groups[number]] for number in set(read.kinds)), default=0)
    # Numbers of one group rise; with several groups the smallest bound holds for all.
    begin = bisect_left(seqs, lowest) if _counts_on(seqs) or all(map(int.__le__, seqs, seqs[1:])) else 0
    return min(finished, begin)


def _last_together(ranks: dict[int, Columns], kinds: Sequence[Kind]) -> dict[str, int]:
    """Group → the last place of its sequence at which all its ranks with a dump made the same call."""
    sequences: dict[str, list[tuple[int, array[int]]]] = {}
    for read in ranks.values():
        for group, sequence in _sequences(read, kinds).items():
            sequences.setdefault(group, []).append(sequence)
    found: dict[str, int] = {kind.group: 0 for kind in kinds}
    for group, members in sequences.items():
        first = max(start for start, _ in members)
        end = min(start + len(calls) for start, calls in members)
        # A rank that stands still while the others go on may have no place in common with them.
        found[group] = min(first, end) - 1
        if end <= first:
            continue
        rows = [calls[first - start : end - start][::-1] for start, calls in members]
        for back, column in enumerate(zip(*rows, strict=True)):
            # -1 stands for a place of which there is no record.
            if column[0] >= 0 and len(set(column)) == 1:
                found[group] = end - 1 - back
                break
    return found


def _sequences(read: Columns, kinds: Sequence[Kind]) -> dict[str, tuple[int, array[int]]]:
    """Group → the number of its oldest recorded collective, and the kinds from there on."""
    present = set(read.kinds)
    used = {kinds[number].group for number in present}
    seqs = read.seqs
    plain = len(used) == 1 and not any(kinds[number].p2p for number in present)
    if plain and _counts_on(seqs):
        return {next(iter(used)): (seqs[0], array("q", read.kinds))}
    by_group: dict[str, dict[int, int]] = {}
    for number, seq in zip(read.kinds, seqs, strict=True):
        kind = kinds[number]
        if not kind.p2p:
            by_group.setdefault(kind.group, {})[seq] = number
    found: dict[str, tuple[int, array[int]]] = {}
    for group, calls in by_group.items():
        newest = max(calls)
        # A ring holds neighbours; numbers far apart are no torch's, and must not cost memory.
        oldest = max(min(calls), newest - 4 * len(read))
        found[group] = (oldest, array("q", (calls.get(seq, -1) for seq in range(oldest, newest + 1))))
    return found


def _counts_on(seqs: array[int]) -> bool:
    """Whether each number is the next one, as where all calls are of one group."""
    return len(seqs) > 0 and seqs[-1] - seqs[0] == len(seqs) - 1 and seqs == array("q", range(seqs[0], seqs[-1] + 1))
