"""Ruling → Verdict: what the diagnosis found, in the words and the form that people and programs get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.diagnose import diagnose
from rankscope.diagnosis.facts import Fact, kind_of
from rankscope.diagnosis.finding import Possibility, Recognised, Ruling, Suspect
from rankscope.diagnosis.probe_failures import probe_failures
from rankscope.diagnosis.verdict import Alternative, Culprit, KnownMessage, Side, Verdict
from rankscope.evidence.model import Evidence
from rankscope.report.words.languages import Language, language

SCHEMA = 2


def conclude(evidence: Evidence, lang: str = "en") -> Verdict:
    """Always a verdict. The one way from what was seen to what is said."""
    return pronounce(examine(evidence), lang)


def examine(evidence: Evidence) -> Ruling:
    """What the diagnosis found, before it is put into words; with what went wrong inside the probe beside it."""
    ruling = diagnose(evidence)
    failed = {seen.rank: seen.progress.probe_errors for seen in evidence.ranks if seen.progress is not None}
    return replace(ruling, notes=(*ruling.notes, *probe_failures(failed)))


def annotated(verdict: Verdict, notes: Iterable[str | Fact]) -> Verdict:
    """With these notes after its own, each once, and none that says what the headline says. What the system itself
    said, such as why a file could not be written, comes as text."""
    words = language(verdict.language)
    said = (*verdict.notes, *(words.sentence(note) if isinstance(note, Fact) else note for note in notes))
    return replace(verdict, notes=tuple(note for note in dict.fromkeys(said) if note != verdict.headline))


def pronounce(ruling: Ruling, lang: str = "en") -> Verdict:
    """In words of that language; everything that a program reads is the same in all."""
    words = language(lang)
    cause = CAUSES.get(ruling.cause or "")
    return Verdict(
        schema=SCHEMA,
        outcome=ruling.outcome,
        cause=ruling.cause,
        certainty=ruling.certainty,
        culprits=tuple(culprit_in_words(suspect, words) for suspect in ruling.culprits),
        victims=ruling.victims,
        headline=_headline(ruling, words),
        because=tuple(dict.fromkeys(map(words.sentence, ruling.because))),
        fix=tuple(dict.fromkeys(map(words.advise, ruling.fix))),
        alternatives=tuple(alternative_in_words(each, words) for each in ruling.alternatives),
        detected_after_s=ruling.detected_after_s,
        world_size=ruling.world_size,
        started_at=ruling.started_at,
        ended_at=ruling.ended_at,
        exit_codes=ruling.exit_codes,
        notes=tuple(map(words.sentence, ruling.notes)),
        references=tuple(dict.fromkeys((*ruling.references, *(cause.references if cause is not None else ())))),
        stragglers=ruling.stragglers,
        signs_of_life=ruling.signs_of_life,
        messages=tuple(_message_in_words(each, words) for each in ruling.messages),
        refused=ruling.refused,
        next=tuple(words.advise(step) for step in ruling.next if step not in ruling.fix),
        stages={rank: words.sentence(stage) for rank, stage in ruling.stages.items()},
        facts=tuple(as_value(fact) for fact in ruling.because),
        retry=cause.retry if cause is not None else "unknown",
        sides=tuple(
            Side(way.ranks, way.where, words.sentence(way.call) if way.call is not None else "") for way in ruling.ways
        ),
        language=words.code,
    )


def as_value(fact: Fact) -> dict[str, Any]:
    """`{"kind": "waits-in", "ranks": [0, 1], ...}`, a fact within a fact with its kind as well."""
    inner = {name: _plain(getattr(fact, name)) for name in fact.__struct_fields__}
    return {"kind": kind_of(type(fact)), **inner}


def _plain(value: object) -> object:
    if isinstance(value, Fact):
        return as_value(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)


def _message_in_words(line: Recognised, words: Language) -> KnownMessage:
    return KnownMessage(line.rank, line.text, words.meaning(line.known), line.role, line.count, line.at)


def _headline(ruling: Ruling, words: Language) -> str:
    victims = () if ruling.victims_told else ruling.victims
    text = words.headline(ruling.summary)
    text = words.with_victims(text, len(ruling.culprits), victims, failed=ruling.victims_failed)
    return text if text.endswith(".") else text + "."


def culprit_in_words(suspect: Suspect, words: Language) -> Culprit:
    return Culprit(
        rank=suspect.rank,
        host=suspect.host,
        pid=suspect.pid,
        process=suspect.process,
        where=suspect.where,
        doing=words.doing(suspect.doing),
        stage=words.sentence(suspect.stage) if suspect.stage is not None else None,
    )


def alternative_in_words(possibility: Possibility, words: Language) -> Alternative:
    return Alternative(
        cause=possibility.cause,
        certainty=possibility.certainty,
        because=words.headline(possibility.because),
        next=words.advise(possibility.next) if possibility.next is not None else "",
    )
