"""Evidence of one node, packed for the store, and of all nodes put together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from rankscope.evidence.encode import to_json
from rankscope.evidence.model import Collective, Evidence, NodeEvidence, RankEvidence
from rankscope.launch.nodes.bounds import TooMuch, plain_json, unpacked
from rankscope.launch.nodes.parts import Parcel, split
from rankscope.launch.nodes.words import MOST_RANKS

NEWEST = 600
"""Calls and collectives of a rank that travel at most; all of them stay in the node's own folder."""
LEAST = 32
FULL_NODES = 16
"""Up to so many nodes send all of these; with more nodes each sends less, so that one node can read them all."""
CLOCK_SLACK_S = 1.5
"""Differences below this are not told from the time that words take."""
_TIMES = frozenset(
    {"at", "entered_at", "left_at", "changed_at", "stage_since", "started_at", "collected_at", "created_at"}
    | {"completed_at"}
)


def travelling(nodes: int) -> int:
    """How many of the newest calls and collectives of a rank travel in a job on so many nodes."""
    return max(LEAST, min(NEWEST, NEWEST * FULL_NODES // max(nodes, 1)))


@dataclass(frozen=True, slots=True)
class Packed:
    """A node's evidence on its way."""

    data: bytes
    parts: dict[str, bytes]
    """Name → content: these must be on the store before the parcel is."""


def pack(evidence: Evidence, clock_off_s: float = 0.0, newest: int = NEWEST) -> Packed:
    """`clock_off_s`: by how much this node's clock is ahead of that of the node which will read it."""
    small = replace(evidence, ranks=tuple(_newest(seen, newest) for seen in evidence.ranks))
    if abs(clock_off_s) > CLOCK_SLACK_S:
        moved = _shifted(msgspec.json.decode(to_json(small)), -clock_off_s)
        small = msgspec.json.decode(msgspec.json.encode(moved), type=Evidence)
    parcel, parts = split(small)
    return Packed(zlib.compress(to_json(parcel), 1), parts)


def unpack(data: bytes, ranks: Sequence[int] | None = None) -> Parcel:
    """Of a node that has these ranks, and no others. Raises TooMuch."""
    text = plain_json(unpacked(data, MOST_RANKS if ranks is None else len(ranks)))
    try:
        parcel = msgspec.json.decode(text, type=Parcel)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TooMuch(f"a parcel that is no evidence: {str(error)[:200]}") from error
    if len(parcel.ranks) != len(parcel.evidence.ranks):
        raise TooMuch("a parcel whose parts are of other ranks")
    if ranks is None:
        return parcel
    if not {seen.rank for seen in parcel.evidence.ranks} <= set(ranks):
        raise TooMuch("a parcel with ranks of other nodes")
    evidence = replace(parcel.evidence, hosts=parcel.evidence.hosts[:1], nodes=())
    return msgspec.structs.replace(parcel, evidence=evidence)


def merge(own: Evidence, others: Sequence[Evidence], nodes: tuple[NodeEvidence, ...]) -> Evidence:
    """One evidence of the whole job, in the words of the node that diagnoses."""
    everyone = [own, *others]
    ranks = {seen.rank: seen for part in everyone for seen in part.ranks}
    sources = {(source.file, source.first_line): source for part in everyone for source in part.sources}
    limits = [part.stall_after_s for part in everyone if part.stall_after_s is not None]
    return replace(
        own,
        world_size=own.world_size,  # every node knows it from the rendezvous
        started_at=min(part.started_at for part in everyone),
        collected_at=max(part.collected_at for part in everyone),
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        hosts=tuple(host for part in everyone for host in part.hosts),
        sources=tuple(sources.values()),
        stall_after_s=max(limits, default=None),
        nodes=nodes,
    )


def _newest(seen: RankEvidence, limit: int) -> RankEvidence:
    """The newest of both lists, and all that came since the oldest operation that has not ended: there are no holes."""
    progress = seen.progress
    entries = seen.collectives
    waiting = next((entry for entry in entries if not entry.retired and not _has_completed(entry, seen)), None)
    first = len(entries) if waiting is None else entries.index(waiting)
    if progress is not None:
        place = None if waiting is None else (waiting.group, waiting.seq)
        calls = progress.calls
        open_call = next(
            (n for n, call in enumerate(calls) if call.left_at is None or (call.group, call.seq) == place), len(calls)
        )
        progress = replace(progress, calls=calls[_start(len(calls), open_call, limit) :])
    return replace(seen, progress=progress, collectives=entries[_start(len(entries), first, limit) :])


def _has_completed(entry: Collective, seen: RankEvidence) -> bool:
    last = seen.last_completed.get(entry.group)
    return entry.state == "completed" or (last is not None and not entry.p2p and entry.seq <= last)


def _start(count: int, first_open: int, limit: int) -> int:
    return max(0, count - NEWEST, min(count - limit, first_open - limit // 4))


def _shifted(value: Any, by: float) -> Any:
    if isinstance(value, list):
        return [_shifted(item, by) for item in value]
    if isinstance(value, dict):
        return {
            key: item + by if key in _TIMES and isinstance(item, int | float) and item else _shifted(item, by)
            for key, item in value.items()
        }
    return value
