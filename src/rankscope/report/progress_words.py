"""How far a job is and how fast, in a few words: the status line, and the last line of a good run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.diagnosis.rules.numbers.stragglers import find_stragglers
from rankscope.diagnosis.verdict import Straggler
from rankscope.evidence.model import Phases
from rankscope.report.words.languages import Language, language

LEAST_SHARE = 0.02
"""Of the time, lost by the others: below it nobody is called slower."""
_LEAST_LOST_S = 0.1
QUIET_S = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the ranks of one node."""

    ranks: int
    steps: int
    """That all of them have made."""
    rate: float | None = None
    """Steps in a second."""
    quiet_s: float = 0.0
    """Since the last step of any of them."""
    slow: Straggler | None = None
    where: str = ""
    """What they do, as long as there is no step."""


def slowest(times: Mapping[int, Phases]) -> Straggler | None:
    """Whom the others wait for, however little; by the same measure as everywhere."""
    found = find_stragglers(times, least_share=LEAST_SHARE, least_lost_s=_LEAST_LOST_S)
    return max(found, key=lambda each: each.share, default=None)


def status(figures: Figures, lang: str = "en") -> str:
    """`8 ranks · step 1,240 · 8.2 steps/s · rank 5 4 % slower`."""
    words = language(lang)
    parts = [words.counted(figures.ranks, "{count} rank", "{count} ranks")]
    if figures.steps:
        parts.append(words.label("step {step}", step=f"{figures.steps:,}"))
        if figures.quiet_s >= max(QUIET_S, 3 / figures.rate if figures.rate else 0.0):
            parts.append(words.label("no step for {time}", time=words.duration(figures.quiet_s)))
        elif figures.rate:
            parts.append(rate(figures.rate, words))
        parts += [slower(figures.slow, words)] if figures.slow is not None else []
    elif figures.where:
        parts.append(figures.where)
    return " · ".join(parts)


def done(figures: Figures, lang: str = "en") -> str:
    """`1,240 steps, rank 5 4 % slower`, for the end of a good run; empty where there is nothing to say."""
    words = language(lang)
    steps = words.counted(figures.steps, "{count} step", "{count} steps") if figures.steps else ""
    slow = slower(figures.slow, words) if figures.slow is not None else ""
    return ", ".join(filter(None, (steps, slow)))


def rate(per_second: float, words: Language) -> str:
    """`8.2 steps/s`, or the time of a step where that is more than a second."""
    if per_second < 0.95:
        return words.label("{seconds} s/step", seconds=f"{1 / per_second:.1f}")
    number = f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"
    return words.label("{number} steps/s", number=number)


def slower(straggler: Straggler, words: Language) -> str:
    return words.label(
        "{rank} {share} % slower", rank=words.ranks([straggler.rank]), share=f"{straggler.share * 100:.0f}"
    )
