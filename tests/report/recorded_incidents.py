"""Incidents for tests of reports: recorded ones, and one of them made as large as wanted."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from rankscope.evidence.model import Evidence, Group, RankEvidence
from rankscope.report.conclude import conclude
from rankscope.report.views.incident import Incident, incident_of

ZOO = Path(__file__).resolve().parents[2] / "zoo"
sys.path.insert(0, str(ZOO))

from corpus import RECORDED, load_recording  # noqa: E402

TEN = (
    "gloo/eval_batchnorm",
    "gloo/metrics_push",
    "gloo/microbatch_pipeline",
    "gloo/replica_groups",
    "gloo/memory_budget",
    "gloo/metric_learning",
    "gloo/streaming_shards",
    "nccl/snapshot",
    "nccl/two_groups",
    "strangers/copper_finch",
)
"""One of each kind: branch, blocked call, messages, groups, crash, bad numbers, uneven data, GPUs, a stranger's."""


def recorded(name: str) -> Evidence:
    """What the verdict was drawn from."""
    looks = load_recording(RECORDED / f"{name}.json.xz").looks
    return next((look.evidence for look in looks if look.due), looks[-1].evidence)


def incident(name: str) -> Incident:
    evidence = recorded(name)
    return incident_of(conclude(evidence), evidence)


def of_many(ranks: int, name: str = "gloo/eval_batchnorm", like: int = 1) -> Evidence:
    """The recorded incident with as many ranks as wanted: those that are new stand as rank `like` does, on machines of
    eight ranks each."""
    evidence = recorded(name)
    pattern = next(seen for seen in evidence.ranks if seen.rank == like)
    seen = [_within(each, ranks) for each in evidence.ranks]
    seen += [_within(_numbered(pattern, rank), ranks) for rank in range(len(seen), ranks)]
    hosts = tuple(replace(evidence.hosts[0], host=f"node-{at}") for at in range((ranks + 7) // 8))
    placed = tuple(replace(each, host=f"node-{each.rank // 8}", local_rank=each.rank % 8) for each in seen)
    return replace(evidence, world_size=ranks, ranks=placed, hosts=hosts)


def _numbered(seen: RankEvidence, rank: int) -> RankEvidence:
    lines = tuple(f"rank {rank}: loss {rank / 7:.4f}" for _ in range(20))
    late = rank % 97 / 1000
    progress = seen.progress
    assert progress is not None
    calls = tuple(replace(call, entered_at=call.entered_at + late / 10) for call in progress.calls)
    return replace(
        seen,
        rank=rank,
        pid=10_000 + rank,
        started_at=seen.started_at + late,
        output_tail=lines,
        environment={**seen.environment, "RANK": str(rank), "LOCAL_RANK": str(rank % 8)},
        progress=replace(progress, calls=calls),
    )


def _within(seen: RankEvidence, ranks: int) -> RankEvidence:
    world = (Group("0", "default_pg", tuple(range(ranks))),)
    progress = replace(seen.progress, groups=world, declared_world=ranks) if seen.progress is not None else None
    return replace(seen, progress=progress, groups=world if seen.groups else ())
