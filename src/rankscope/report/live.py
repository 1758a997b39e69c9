"""What is said while the job still runs: one line each, on standard error."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.run import CameBack
from rankscope.diagnosis.verdict import Verdict
from rankscope.report.plain_text import plain, short_path
from rankscope.report.screen import Screen
from rankscope.report.words.languages import Language, language
from rankscope.terminal_text import harmless

Then = Literal["restart", "give-up", "watch", "go-on"]
"""What becomes of a job that is not stopped, or not started again."""
_THEN: dict[Then, str] = {
    "restart": "restarting the job",
    "give-up": "not restarted: it would fail again",
    "watch": "watching on, nothing is stopped",
    "go-on": "nothing is stopped",
}


@dataclass(frozen=True, slots=True)
class Starts:
    """The first line of a run."""

    program: str
    ranks: int
    """On this node."""
    nodes: int
    folder: str


@dataclass(frozen=True, slots=True)
class Detected:
    """The headline, the moment it is known: no report follows soon."""

    verdict: Verdict
    then: Then
    option: str = ""
    """That decides it: `--on-hang auto`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Who and where, in a few words: the report with the headline follows as soon as the ranks have ended."""

    verdict: Verdict
    whom: Literal["the job", "the other ranks"]
    option: str = ""
    """That decides it: `--on-hang auto`."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something slow or still that may well be meant: told once, never acted on."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Slowed:
    """The job goes on, and one rank holds the others up: told once."""

    stragglers: Fact


@dataclass(frozen=True, slots=True)
class Said:
    """By another node, as far as we know: told, never acted on."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class GoesOn:
    """A job that had been reported to hang."""

    after_s: float


@dataclass(frozen=True, slots=True)
class LastLook:
    """A signal came."""

    signal: int


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A signal that is the program's own affair."""

    signal: int
    ranks: int
    spared: tuple[int, ...]
    """Ranks that do not handle it, and would have died of it."""


@dataclass(frozen=True, slots=True)
class StoppedAtOnce:
    """A second one came."""


Line = Starts | Detected | Ending | Noticed | Slowed | Said | GoesOn | LastLook | PassedOn | StoppedAtOnce


def tell(line: Line, lang: str = "en") -> None:
    say(words(line, lang))


def words(line: Line, lang: str = "en") -> str:
    """In that language; around a verdict in the verdict's own."""
    of = language(lang)
    match line:
        case Starts(program, ranks, nodes, folder):
            here = of.counted(ranks, "{count} rank", "{count} ranks")
            where = here if nodes == 1 else of.label("{ranks} here, {nodes} nodes", ranks=here, nodes=nodes)
            return plain(f"{short_path(program)} · {where} · {short_path(folder)}")
        case Detected(verdict, then, option):
            of = language(verdict.language)
            time_ = verdict.detected_after_s
            after = of.label(" after {time}", time=of.duration(time_)) if time_ is not None else ""
            tail = of.label(_THEN[then]) + (f" ({of.label(option)})" if option else "")
            sure = of.label(verdict.certainty)
            return plain(f"{verdict.outcome.upper()}, {sure}{after}: {verdict.headline} ({tail})")
        case Ending(verdict, whom, option):
            of = language(verdict.language)
            about = _who_and_where(verdict, of)
            decided = of.label(f"stopping {whom}") + (f" ({option})" if option else "")
            return plain(f"{verdict.outcome.upper()}{about} ({decided}; {of.label('the report follows')})")
        case Noticed(verdict):
            of = language(verdict.language)
            return plain(of.label("note: {headline} The job is watched.", headline=verdict.headline))
        case Slowed(stragglers):
            return plain(of.label("note: {what}. The job goes on.", what=of.sentence(stragglers)))
        case Said(fact):
            return plain(of.label("{what}. Nothing is stopped for it.", what=of.sentence(fact)))
        case GoesOn(seconds):
            return of.sentence(CameBack(seconds))
        case LastLook(number):
            name = signal.Signals(number).name
            return f"{name}: {of.label('taking a last look, then stopping the ranks (again: stop at once)')}"
        case PassedOn(number, ranks, spared):
            name = signal.Signals(number).name
            given = of.label("passed on to {count} ranks", count=ranks) if ranks else of.label("passed on to no rank")
            rest = of.label("; {ranks} would die of it and did not get it", ranks=of.ranks(spared)) if spared else ""
            return f"{name}: {given}{rest}"
        case StoppedAtOnce():
            return of.label("stopped at once")


def _who_and_where(verdict: Verdict, of: Language) -> str:
    """`: rank 1, train.py:88`."""
    ranks = sorted({culprit.rank for culprit in verdict.culprits if culprit.rank is not None})
    places = [f"{short_path(each.where.file)}:{each.where.line}" for each in verdict.culprits if each.where]
    known = [*([of.ranks(ranks)] if ranks else []), *places[:1]]
    return f": {', '.join(known)}" if known else ""


def say(text: str) -> None:
    """One whole line, written at once so that it cannot be torn by the ranks' output."""
    if text:
        show([f"rankscope: {text}"])


_screens: list[Screen] = []
"""The terminal with lines in place, while a run has one."""


def use(screen: Screen) -> None:
    """From now on everything is said above what stands in place there, until `leave_screen`."""
    _screens[:] = [screen]


def leave_screen() -> None:
    """What stood in place goes."""
    while _screens:
        _screens.pop().close()


def show(lines: list[str]) -> None:
    """Whole lines, in one piece; harmless to a terminal whatever of a job they quote."""
    text = "".join(f"{harmless(line)}\n" for line in lines)
    try:
        if _screens:
            _screens[0].write(text.encode("utf-8", "replace"))
            return
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return  # nobody reads the terminal any more; the same is written to the run's folder
