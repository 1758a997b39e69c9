"""What torch's flight recorder holds of one rank, read as the GPU's own clock: what is finished, what has begun.

Of NCCL the recorder tells more than of gloo, and some of it misleads:

- an operation reads as completed before NCCL has taken it, as long as its CUDA events were never recorded; the group's
  count knows better, but stands still once the group's watchdog has ended, as in `destroy_process_group`;
- calls that torch makes in one go (a coalescing manager, `batch_isend_irecv`) leave an entry each, whose states mean
  nothing, and one more at the end, named `coalesced`, whose state counts for all;
- a state `started` exists only where torch times collectives (`TORCH_NCCL_ENABLE_TIMING`).
"""

from __future__ import annotations

import re
from itertools import groupby

import msgspec
from msgspec.structs import replace

from rankscope.evidence.model import Collective, Group, RankEvidence

_MESSAGE = re.compile(r"^(?P<word>send|recv) \d+(?:->|<-)(?P<peer>\d+)$")
"""How the recorder names messages of NCCL."""


class Half(msgspec.Struct, frozen=True):
    sends: bool
    peer: int
    """As the world counts; -1 where the group's members are not known."""


class Batch(msgspec.Struct, frozen=True):
    """A message, or several that the GPU does as one."""

    entries: tuple[Collective, ...]
    """The last one's state counts for all."""
    messages: tuple[Half, ...]
    grouped: bool


class Record(msgspec.Struct, frozen=True):
    collectives: tuple[Collective, ...]
    """Coalesced ones as one, oldest first."""
    messages: tuple[Batch, ...]
    timed: bool
    last_completed: dict[str, int]
    newest: dict[str, int]
    """Group → record id of its newest entry."""

    def done(self, entry: Collective) -> bool:
        if entry.retired:
            return True
        if entry.state != "completed":
            return False
        last = self.last_completed.get(entry.group)
        if last is None or last < 0 or (not entry.p2p and last >= entry.seq):
            return True
        # The host was there and went on to the next call: the events of this one were recorded, and tell the truth.
        return entry.backend == "nccl" and self.newest.get(entry.group, -1) > entry.record_id

    def started(self, entry: Collective) -> bool | None:
        """None where nobody can tell: without times, and where it reads as completed and is not."""
        if self.done(entry):
            return True
        if not self.timed or entry.backend != "nccl" or entry.state == "completed":
            return None
        return entry.state == "started"


def read_record(rank: RankEvidence) -> Record:
    collectives: tuple[Collective, ...] = rank.collectives
    messages: tuple[Batch, ...] = ()
    if any(entry.p2p or entry.op.endswith("coalesced") for entry in rank.collectives):
        collectives, messages = _sorted_out(rank)
    return Record(
        collectives,
        messages,
        timed=_timed(rank),
        last_completed=rank.last_completed,
        newest={entry.group: entry.record_id for entry in rank.collectives},
    )


def _sorted_out(rank: RankEvidence) -> tuple[tuple[Collective, ...], tuple[Batch, ...]]:
    by_call: list[list[Collective]] = []
    for _, run in groupby(rank.collectives, key=_call_key):
        by_call += _calls_of(list(run))
    collectives: list[Collective] = []
    messages: list[Batch] = []
    for entries in by_call:
        if any(entry.p2p for entry in entries):
            messages += _batches(entries, rank)
        else:
            collectives += _collectives(entries)
    return tuple(collectives), tuple(messages)


def _timed(rank: RankEvidence) -> bool:
    """By what was recorded: that torch was asked to does not mean that it did."""
    return any(
        entry.backend == "nccl" and (entry.started_at is not None or entry.state == "started")
        for entry in rank.collectives
    )


def _call_key(entry: Collective) -> tuple[str, int, int]:
    return entry.group, entry.seq, entry.p2p_seq


def _calls_of(run: list[Collective]) -> list[list[Collective]]:
    """Entries with the same numbers in a row: one call, up to the entry that ends it."""
    found: list[list[Collective]] = [[]]
    for entry in run:
        found[-1].append(entry)
        if _ends_batch(entry):
            found.append([])
    return [entries for entries in found if entries]


def _ends_batch(entry: Collective) -> bool:
    return entry.backend == "nccl" and not entry.input_sizes and entry.op.endswith("coalesced")


def _collectives(entries: list[Collective]) -> list[Collective]:
    last = entries[-1]
    if len(entries) == 1 or not _ends_batch(last):
        return entries
    first, made = entries[0], entries[:-1]
    same = len({entry.op for entry in made}) == 1
    one = replace(
        first,
        op=first.op if len(made) == 1 else (f"{first.op}_coalesced" if same else last.op),
        record_id=last.record_id,
        state=last.state,
        retired=last.retired,
        completed_at=last.completed_at,
        input_sizes=tuple(size for entry in made for size in entry.input_sizes),
        output_sizes=tuple(size for entry in made for size in entry.output_sizes),
        input_dtypes=tuple(name for entry in made for name in entry.input_dtypes),
        output_dtypes=tuple(name for entry in made for name in entry.output_dtypes),
    )
    return [one]


def _batches(entries: list[Collective], rank: RankEvidence) -> list[Batch]:
    halves = {entry.record_id: half for entry in entries if (half := _half(entry, rank)) is not None}
    if _ends_batch(entries[-1]):
        told = tuple(halves[entry.record_id] for entry in entries if entry.record_id in halves)
        return [Batch(tuple(entries), told, grouped=True)] if told else []
    return [
        Batch((entry,), (halves[entry.record_id],), grouped=False) for entry in entries if entry.record_id in halves
    ]


def _half(entry: Collective, rank: RankEvidence) -> Half | None:
    match = _MESSAGE.match(entry.op)
    if match is None:
        return None
    return Half(match["word"] == "send", world_rank(int(match["peer"]), entry.group, rank))


def world_rank(member: int, group: str, rank: RankEvidence) -> int:
    """The record counts ranks within their group; -1 where the group's members are not known."""
    if group in ("0", ""):
        return member
    known: tuple[Group, ...] = (*(rank.progress.groups if rank.progress is not None else ()), *rank.groups)
    ranks = next((each.ranks for each in known if each.name == group), ())
    return ranks[member] if member < len(ranks) else -1
