"""Findings with their facts in words, for tests that check what a person reads."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis.finding import Finding
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import advise


def in_words(finding: Finding) -> Finding:
    return replace(
        finding,
        summary=headline(finding.summary),
        because=tuple(map(sentence, finding.because)),
        fix=tuple(map(advise, finding.fix)),
        culprits=tuple(replace(culprit, doing=doing(culprit.doing)) for culprit in finding.culprits),
        alternatives=tuple(replace(other, because=headline(other.because)) for other in finding.alternatives),
    )
