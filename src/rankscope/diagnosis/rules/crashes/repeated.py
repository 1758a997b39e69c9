"""Ranks whose exception only repeats the error of another: gathered tracebacks, texts of spawned processes."""

from __future__ import annotations

import re

from msgspec.structs import replace

from rankscope.diagnosis.facts import changed
from rankscope.diagnosis.facts.endings import Raised, RepeatsErrorOf
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.chains import first_line, short_type
from rankscope.diagnosis.rules.crashes.origins import Origin
from rankscope.diagnosis.views import rank_culprit
from rankscope.evidence.model import Evidence, RaisedException

_OF_RANK = re.compile(r"^Traceback \(most recent call last\): \(RANK (\d+)\)", re.MULTILINE)


def without_repeats(origins: list[Origin], evidence: Evidence) -> tuple[list[Origin], list[int]]:
    """The origins that are left, and the ranks that turned out to repeat another's error."""
    failed = {origin.rank.rank for origin in origins}
    gathered = {origin.rank.rank: named for origin in origins if (named := _gathered_from(origin) & failed)}
    repeats: dict[int, list[int]] = {}
    for rank, named in gathered.items():
        if rank not in named:
            repeats.setdefault(min(named), []).append(rank)
    found_out = {rank for ranks in repeats.values() for rank in ranks}
    origins = [origin for origin in origins if origin.rank.rank not in found_out]
    own = [origin for origin in origins if _repeated(origin) is None]
    left: list[Origin] = [*own]
    for origin in origins:
        told = _repeated(origin)
        if told is None:
            continue
        of = next((each.rank.rank for each in own if _same(each, told)), None)
        if of is None and (of := _named(origin, evidence)) is not None and of not in repeats:
            left.append(_moved(origin, of, evidence))
        if of is None:
            left.append(origin)
        else:
            repeats.setdefault(of, []).append(origin.rank.rank)
    told_of = [_with_repeats(origin, repeats.get(origin.rank.rank, [])) for origin in left]
    return told_of, sorted(rank for ranks in repeats.values() for rank in ranks)


def _gathered_from(origin: Origin) -> frozenset[int]:
    """The ranks whose tracebacks its message holds, where each says whose it is, as torch's checkpoints write them."""
    account = origin.account
    if account is None:
        return frozenset()
    return frozenset(int(rank) for rank in _OF_RANK.findall(account.last.message))


def _repeated(origin: Origin) -> RaisedException | None:
    """What it repeats; None for an error of its own, also one that it gathered with those of the others."""
    account = origin.account
    if account is None or account.quoting is None or account.names_rank == origin.rank.rank:
        return None
    return account.told


def _same(origin: Origin, told: RaisedException) -> bool:
    """It is among what this rank itself raised."""
    links = origin.account.links if origin.account is not None else ()
    return any(_head(link.error) == _head(told) for link in links)


def _head(error: RaisedException) -> tuple[str, str]:
    return short_type(error), first_line(error.message)


def _named(origin: Origin, evidence: Evidence) -> int | None:
    named = origin.account.names_rank if origin.account is not None else None
    known = {seen.rank for seen in evidence.ranks}
    return named if named in known and named != origin.rank.rank else None


def _moved(origin: Origin, rank: int, evidence: Evidence) -> Origin:
    """The same failure, as that of the rank that it belongs to."""
    seen = next(each for each in evidence.ranks if each.rank == rank)
    finding: Finding = origin.finding
    facts = tuple(changed(fact, rank=rank) if isinstance(fact, Raised) else fact for fact in finding.because)
    raised = next((fact for fact in facts if isinstance(fact, Raised)), finding.summary)
    culprit = rank_culprit(seen, raised, finding.culprits[0].where)
    moved = replace(finding, certainty="likely", culprits=(culprit,), summary=raised, because=facts)
    return replace(origin, rank=seen, finding=moved)


def _with_repeats(origin: Origin, ranks: list[int]) -> Origin:
    if not ranks:
        return origin
    fact = RepeatsErrorOf(tuple(sorted(ranks)), origin.rank.rank)
    return replace(origin, finding=replace(origin.finding, because=(*origin.finding.because, fact)))
