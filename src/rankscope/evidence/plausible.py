"""Numbers in evidence of others that rules count up to."""

from __future__ import annotations

from rankscope.evidence.flight import MOST_RANKS
from rankscope.evidence.model import Evidence


def beyond_any_job(evidence: Evidence) -> str | None:
    """What it names that no job has, after the words "it names"; None where nothing is."""
    ranks = [evidence.world_size - 1, *(seen.rank for seen in evidence.ranks)]
    for seen in evidence.ranks:
        groups = (*seen.groups, *(seen.progress.groups if seen.progress is not None else ()))
        ranks.append(seen.progress.declared_world - 1 if seen.progress is not None else -1)
        ranks += (rank for group in groups for rank in group.ranks[:1] + group.ranks[-1:])
        if any(len(group.ranks) > MOST_RANKS for group in groups):
            return f"a group of more than {MOST_RANKS} ranks: no job has so many"
    if max(ranks) >= MOST_RANKS or min(ranks) < -1:
        return f"rank {max(ranks, key=abs)}: no job has so many"
    return None
