"""A job that ran out of memory because it was told to have no more."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.endings import MemoryLimit
from rankscope.diagnosis.finding import Ruling
from rankscope.evidence.model import Evidence

_OPTION = "--memory-limit"


def with_memory_limit(ruling: Ruling, evidence: Evidence) -> Ruling:
    """Names the limit that the command itself had set, where memory is what ran out."""
    limit = _limit(evidence.command)
    if ruling.cause != "out-of-memory-host" or limit is None:
        return ruling
    return replace(
        ruling,
        because=(*ruling.because, MemoryLimit(limit)),
        fix=(Advice("raise-option-memory-limit", limit=limit), *ruling.fix),
    )


def _limit(command: tuple[str, ...]) -> str | None:
    for at, word in enumerate(command):
        if word == _OPTION and at + 1 < len(command):
            return command[at + 1]
        if word.startswith(f"{_OPTION}="):
            return word.partition("=")[2]
    return None
