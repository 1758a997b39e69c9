"""The languages that a report can be written in. Which one is chosen once, where a command begins, and handed down;
a verdict knows the language that it was put into, so that labels around it agree with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.errors import UsageError

CODES = ("en", "ko")
VARIABLE = "RANKSCOPE_LANG"
_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
"""The first that is set and not empty counts."""


class _WithVictims(Protocol):
    def __call__(self, text: str, culprits: int, victims: tuple[int, ...], *, failed: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class Language:
    code: str
    sentence: Callable[[Fact], str]
    headline: Callable[[Fact], str]
    doing: Callable[[Fact], str]
    advise: Callable[[Advice], str]
    with_victims: _WithVictims
    ranks: Callable[[Iterable[int]], str]
    """`rank 3`, `ranks 0-2, 4`."""
    rank_list: Callable[[Iterable[int]], str]
    span: Callable[[float], str]
    duration: Callable[[float], str]
    meaning: Callable[[str], str]
    """Of a known error, by its name in the table of known errors."""
    labels: Mapping[str, str]
    """English → this language: headings, names of columns, words that stand alone. English needs none."""
    fill: Callable[[str, Mapping[str, object]], str]

    def label(self, english: str, **values: object) -> str:
        """`label("{count} more ranks", count=3)`."""
        return self.fill(self.labels.get(english, english), values)

    def counted(self, count: int, one: str, many: str) -> str:
        """`label` with `{count}`, in the form of one or of many."""
        return self.label(one if count == 1 else many, count=f"{count:,}")


@cache
def language(code: str) -> Language:
    """Loads the words of that language alone."""
    return _korean() if code == "ko" else _english()


def _english() -> Language:
    from rankscope.report import words
    from rankscope.report.plain_text import duration
    from rankscope.report.words import phrases
    from rankscope.report.words.advice import advise
    from rankscope.report.words.known_errors import MEANINGS

    return Language(
        code="en",
        sentence=words.sentence,
        headline=words.headline,
        doing=words.doing,
        advise=advise,
        with_victims=phrases.with_victims,
        ranks=phrases.ranks_text,
        rank_list=phrases.rank_list,
        span=phrases.span,
        duration=duration,
        meaning=MEANINGS.__getitem__,
        labels={},
        fill=lambda text, values: text.format(**values),
    )


def _korean() -> Language:
    from rankscope.report.words import ko
    from rankscope.report.words.ko import phrases
    from rankscope.report.words.ko.advice import advise
    from rankscope.report.words.ko.labels import LABELS
    from rankscope.report.words.ko.meanings import MEANINGS
    from rankscope.report.words.ko.particles import Word

    return Language(
        code="ko",
        sentence=ko.sentence,
        headline=ko.headline,
        doing=ko.doing,
        advise=advise,
        with_victims=phrases.with_victims,
        ranks=phrases.ranks_text,
        rank_list=phrases.rank_list,
        span=phrases.span,
        duration=phrases.duration,
        meaning=MEANINGS.__getitem__,
        labels=LABELS,
        fill=lambda text, values: text.format(**{name: Word(value) for name, value in values.items()}),
    )


def chosen_language(wanted: str | None, environment: Mapping[str, str]) -> str:
    """`--lang`, else what the environment says, as `ko_KR.UTF-8`; English where that is no language of ours. Raises
    UsageError where RANKSCOPE_LANG itself names none: nobody else reads it."""
    if wanted is not None:
        return wanted
    for variable in _VARIABLES:
        told = environment.get(variable, "")
        if not told:
            continue
        code = told.partition(".")[0].partition("_")[0].lower()
        if variable == VARIABLE and code not in CODES:
            raise UsageError(f"{VARIABLE}={told} is not known: give one of {', '.join(CODES)}")
        return code if code in CODES else "en"
    return "en"


def add_lang(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--lang",
        choices=CODES,
        help="language of verdict, reports and notices: English or Korean (default: RANKSCOPE_LANG, or the locale)",
    )
