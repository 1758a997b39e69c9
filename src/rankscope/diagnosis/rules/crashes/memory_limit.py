"""A job that ran out of memory because it was told to have no more."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.endings import MemoryLimit
from rankscope.diagnosis.facts.setup import ImportedTogether
from rankscope.diagnosis.finding import Ruling
from rankscope.evidence.model import Evidence

_OPTION = "--memory-limit"


def with_memory_limit(ruling: Ruling, evidence: Evidence) -> Ruling:
    """Names the limit that the command itself had set, where memory is what ran out."""
    if ruling.cause != "out-of-memory-host":
        return ruling
    limit = _limit(evidence.command)
    together = _imported_together(ruling, evidence)
    if limit is None and together:
        return replace(
            ruling,
            because=(*ruling.because, ImportedTogether(together)),
            fix=(Advice("import-one-at-a-time"), *ruling.fix),
        )
    if limit is None:
        return ruling
    return replace(
        ruling,
        because=(*ruling.because, MemoryLimit(limit)),
        fix=(Advice("raise-option-memory-limit", limit=limit), *ruling.fix),
    )


def _imported_together(ruling: Ruling, evidence: Evidence) -> tuple[int, ...]:
    """Ranks of the first culprit's host, where it came no further than its imports and nobody queued for them."""
    culprit = next((seen for seen in evidence.ranks if any(each.rank == seen.rank for each in ruling.culprits)), None)
    if culprit is None or culprit.progress is None:
        return ()
    kinds = {stage.kind for stage in culprit.progress.stages}
    beside = tuple(seen.rank for seen in evidence.ranks if seen.host == culprit.host)
    return beside if kinds <= {"started"} and len(beside) > 1 else ()


def _limit(command: tuple[str, ...]) -> str | None:
    for at, word in enumerate(command):
        if word == _OPTION and at + 1 < len(command):
            return command[at + 1]
        if word.startswith(f"{_OPTION}="):
            return word.partition("=")[2]
    return None
