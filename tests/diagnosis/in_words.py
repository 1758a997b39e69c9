"""Findings with their facts in words, for tests that check what a person reads."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.verdict import Alternative, Certainty, Culprit, Outcome
from rankscope.report.conclude import alternative_in_words, culprit_in_words
from rankscope.report.words import headline, sentence
from rankscope.report.words.advice import advise
from rankscope.report.words.languages import language


@dataclass(frozen=True, slots=True)
class Told:
    """A finding as it is read."""

    outcome: Outcome
    cause: str
    certainty: Certainty
    culprits: tuple[Culprit, ...]
    summary: str
    because: tuple[str, ...]
    fix: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    references: tuple[str, ...]


def in_words(finding: Finding) -> Told:
    english = language("en")
    return Told(
        outcome=finding.outcome,
        cause=finding.cause,
        certainty=finding.certainty,
        culprits=tuple(culprit_in_words(each, english) for each in finding.culprits),
        summary=headline(finding.summary),
        because=tuple(map(sentence, finding.because)),
        fix=tuple(map(advise, finding.fix)),
        alternatives=tuple(alternative_in_words(each, english) for each in finding.alternatives),
        references=finding.references,
    )
