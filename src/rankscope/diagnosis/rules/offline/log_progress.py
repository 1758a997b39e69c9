"""Signs in a log that the job went on, or ended well: steps that count up, and words for a good end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from rankscope.diagnosis.facts.nothing_found import LoggedSteps, SaidDone
from rankscope.diagnosis.rules.offline.log_facts import ago, signs_of_life
from rankscope.evidence.model import Evidence, Log

_STEP = re.compile(
    r"(?i)\b(?:(?:global[_ ]?|train[_ ]?)?step|iter(?:ation)?|batch|epoch)s?\b[\s:=#\[(|]{0,4}(\d{1,9})\b"
    r"|\b(\d{1,9})/\d+ \["
)
_DONE = re.compile(
    r"(?i)\b(?:training|run|job) (?:has |is |was )?(?:finished|completed?|done|ended)\b|\bfinished training\b"
    r"|`?Trainer\.fit`? stopped: `?max_|\bended well\b|\ball done\b"
)
_LAST_LINES = 12
_FRESH_S = 60.0
_RHYTHMS = 20
"""A log that has been silent for as many times its usual pause is no longer written."""


class _Writer(msgspec.Struct, frozen=True):
    rank: int | None
    log: Log
    ago_s: float | None


def said_done(evidence: Evidence) -> SaidDone | None:
    """Every rank of the logs ends with words for a good end."""
    writers = _writers(evidence)
    lines = [_done_line(writer.log) for writer in writers]
    if not writers or None in lines or _unheard(evidence, writers):
        return None
    return SaidDone(_ranks(writers), (lines[0] or "")[:120])


def still_counts(evidence: Evidence) -> LoggedSteps | None:
    """Every rank of the logs counted steps up to its last lines, which were fresh when they were read."""
    writers = _writers(evidence)
    counts = [_steps(writer.log.tail) for writer in writers]
    if not writers or _unheard(evidence, writers) or not all(map(_counts_up, counts)):
        return None
    if not all(map(_fresh, writers)):
        return None
    ages = [writer.ago_s for writer in writers if writer.ago_s is not None]
    first, last = min(count[0] for count in counts), min(count[-1] for count in counts)
    return LoggedSteps(_ranks(writers), first, last, max(ages, default=None))


def last_steps(evidence: Evidence) -> LoggedSteps | None:
    """The steps that were counted before the logs fell silent."""
    writers = [writer for writer in _writers(evidence) if _counts_up(_steps(writer.log.tail))]
    if not writers:
        return None
    counts = [_steps(writer.log.tail) for writer in writers]
    ages = [writer.ago_s for writer in writers if writer.ago_s is not None]
    return LoggedSteps(
        _ranks(writers), min(count[0] for count in counts), min(count[-1] for count in counts), max(ages, default=None)
    )


def _writers(evidence: Evidence) -> list[_Writer]:
    """Whose lines tell how the job fares: the ranks', or where no line names a rank, all lines."""
    signs = {sign.rank: sign.ago_s for sign in signs_of_life(evidence)}
    ranks = [_Writer(seen.rank, seen.log, signs.get(seen.rank)) for seen in evidence.ranks if seen.log is not None]
    spoke = [writer for writer in ranks if writer.log.lines]
    if spoke or evidence.log is None:
        return spoke
    return [_Writer(None, evidence.log, ago(evidence.log, evidence))]


def _unheard(evidence: Evidence, writers: list[_Writer]) -> bool:
    """Ranks of the job of which there is no line, where lines name their ranks at all."""
    heard = {writer.rank for writer in writers}
    return None not in heard and any(rank not in heard for rank in range(evidence.world_size))


def _ranks(writers: list[_Writer]) -> tuple[int, ...]:
    return tuple(sorted(writer.rank for writer in writers if writer.rank is not None))


def _done_line(log: Log) -> str | None:
    """From the words on, without what stands before them."""
    lines = reversed(log.tail[-_LAST_LINES:])
    return next((text[match.start() :].strip() for text in lines if (match := _DONE.search(text)) is not None), None)


def _steps(lines: Iterable[str]) -> list[int]:
    return [int(match[1] or match[2]) for line in lines if (match := _STEP.search(line)) is not None]


def _counts_up(steps: list[int]) -> bool:
    return sum(later > earlier for earlier, later in pairwise(steps)) >= 2


def _fresh(writer: _Writer) -> bool:
    """Where no time is known at all, nobody can tell."""
    log = writer.log
    if writer.ago_s is None:
        return False
    rhythm = (log.last_at - log.first_at) / log.lines if log.last_at and log.first_at and log.lines else 0.0
    return writer.ago_s <= max(_FRESH_S, _RHYTHMS * rhythm)
