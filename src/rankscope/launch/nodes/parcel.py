"""Evidence of one node, packed for the store, and of all nodes put together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rankscope.evidence.encode import to_json
from rankscope.evidence.model import Evidence, NodeEvidence, RankEvidence

NEWEST = 600
"""Calls and collectives of a rank that travel; all of them stay in the node's own folder."""
CLOCK_SLACK_S = 1.5
"""Differences below this are not told from the time that words take."""
_TIMES = frozenset(
    {"at", "entered_at", "left_at", "changed_at", "stage_since", "started_at", "collected_at", "created_at"}
    | {"completed_at"}
)


def pack(evidence: Evidence, clock_off_s: float = 0.0) -> bytes:
    """`clock_off_s`: by how much this node's clock is ahead of that of the node which will read it."""
    small = replace(evidence, ranks=tuple(map(_newest, evidence.ranks)))
    data = to_json(small)
    if abs(clock_off_s) > CLOCK_SLACK_S:
        data = msgspec.json.encode(_shifted(msgspec.json.decode(data), -clock_off_s))
    return zlib.compress(data, 1)


def unpack(data: bytes) -> Evidence:
    return msgspec.json.decode(zlib.decompress(data), type=Evidence)


def merge(own: Evidence, others: Sequence[Evidence], nodes: tuple[NodeEvidence, ...]) -> Evidence:
    """One evidence of the whole job, in the words of the node that diagnoses."""
    everyone = [own, *others]
    ranks = {seen.rank: seen for part in everyone for seen in part.ranks}
    sources = {(source.file, source.first_line): source for part in everyone for source in part.sources}
    limits = [part.stall_after_s for part in everyone if part.stall_after_s is not None]
    return replace(
        own,
        world_size=max(part.world_size for part in everyone),
        started_at=min(part.started_at for part in everyone),
        collected_at=max(part.collected_at for part in everyone),
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        hosts=tuple(host for part in everyone for host in part.hosts),
        sources=tuple(sources.values()),
        stall_after_s=max(limits, default=None),
        nodes=nodes,
    )


def _newest(seen: RankEvidence) -> RankEvidence:
    progress = seen.progress
    if progress is not None and len(progress.calls) > NEWEST:
        progress = replace(progress, calls=progress.calls[-NEWEST:])
    return replace(seen, progress=progress, collectives=seen.collectives[-NEWEST:])


def _shifted(value: Any, by: float) -> Any:
    if isinstance(value, list):
        return [_shifted(item, by) for item in value]
    if isinstance(value, dict):
        return {
            key: item + by if key in _TIMES and isinstance(item, int | float) and item else _shifted(item, by)
            for key, item in value.items()
        }
    return value
