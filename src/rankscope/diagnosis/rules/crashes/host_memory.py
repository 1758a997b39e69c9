"""How the ranks' memory grew, where the memory of their machine ran out."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.memory import HostGrew
from rankscope.diagnosis.finding import Ruling
from rankscope.evidence.model import Evidence, RankEvidence

_LEAST_STEPS = 5
_GROWN_SHARE = 0.2
"""Of what it held at the end: less is no growth that filled a machine."""
_LEAST_BYTES = 64 << 20
"""Imports take as much."""


def with_host_memory(ruling: Ruling, evidence: Evidence) -> Ruling:
    """Tells how the culprits grew, and the rank beside them that grew most, where that is another: the memory killer
    does not always choose the one that filled the machine."""
    if ruling.cause != "out-of-memory-host":
        return ruling
    guilty = {culprit.rank for culprit in ruling.culprits}
    hosts = {seen.host for seen in evidence.ranks if seen.rank in guilty}
    grown = {seen.rank: fact for seen in evidence.ranks if seen.host in hosts and (fact := _grew(seen)) is not None}
    if not grown:
        return ruling
    most = max(grown.values(), key=lambda fact: fact.last - fact.first)
    told = [fact for rank, fact in grown.items() if rank in guilty]
    told += [most] if most.rank not in guilty else []
    advice = (Advice("find-what-grows"),) if any(fact.steps for fact in told) else ()
    return replace(ruling, because=(*ruling.because, *told), fix=(*advice, *ruling.fix))


def _grew(seen: RankEvidence) -> HostGrew | None:
    """Since the first step where there were some: what every step needs again was there by then."""
    marks, steps = seen.memory, 0
    progress = seen.progress
    if progress is not None and progress.steps > _LEAST_STEPS:
        first = next((stage.left_at for stage in progress.stages if stage.kind == "first step" and stage.left_at), None)
        if first is not None:
            marks, steps = tuple(mark for mark in marks if mark.at >= first), progress.steps - 1
    if len(marks) < 2:
        return None
    begin, end = marks[0], marks[-1]
    if end.bytes - begin.bytes < max(_GROWN_SHARE * end.bytes, _LEAST_BYTES):
        return None
    return HostGrew(seen.rank, begin.bytes, end.bytes, end.at - begin.at, steps)
