"""What is said while the job still runs: one line each, on standard error."""

from __future__ import annotations

import sys

from rankscope.diagnosis.verdict import Verdict
from rankscope.report.phrases import plain, short_path
from rankscope.report.words.phrases import ranks_text


def say(text: str) -> None:
    """One whole line, written at once so that it cannot be torn by the ranks' output."""
    if text:
        try:
            sys.stderr.write(f"rankscope: {text}\n")
            sys.stderr.flush()
        except OSError:
            return  # nobody reads the terminal any more; the same is written to the run's folder


def show(lines: list[str]) -> None:
    """Whole lines as they are, in one piece."""
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        return  # nobody reads the terminal any more; the same is written to the run's folder


def detected(verdict: Verdict, then: str) -> str:
    """The headline, the moment it is known."""
    after = f" after {verdict.detected_after_s:.1f} s" if verdict.detected_after_s is not None else ""
    tail = f" ({then})" if then else ""
    return plain(f"{verdict.outcome.upper()}, {verdict.certainty}{after}: {verdict.headline}{tail}")


def ending(verdict: Verdict, then: str) -> str:
    """Who and where, in a few words: the report with the headline follows as soon as the ranks have ended."""
    ranks = sorted({culprit.rank for culprit in verdict.culprits if culprit.rank is not None})
    places = dict.fromkeys(
        f"{short_path(culprit.where.file)}:{culprit.where.line}" for culprit in verdict.culprits if culprit.where
    )
    facts = ", ".join(filter(None, (ranks_text(ranks) if ranks else "", next(iter(places), ""))))
    return plain(f"{verdict.outcome.upper()}{': ' if facts else ''}{facts} ({then}; the report follows)")


def slowed(sentence: str) -> str:
    """The job goes on, and one rank holds the others up: told once."""
    return plain(f"note: {sentence}. The job goes on.")


def noticed(verdict: Verdict) -> str:
    """Something slow or still that may well be meant: told once, never acted on."""
    return plain(f"note: {verdict.headline} This may be meant; the job is watched.")
