"""Tells among the ranks that ended who began it and who only failed as a consequence."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.endings import (
    AlsoFailedSo,
    Besides,
    ClocksMayDiffer,
    FailedAlike,
    FailedAsConsequence,
    FailedLater,
    RepeatsErrorOf,
    StillConnects,
    Together,
)
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.chains import account_of, first_line, known_error_of
from rankscope.diagnosis.rules.crashes.deaths import signal_of
from rankscope.diagnosis.rules.crashes.exceptions import explain_exception
from rankscope.diagnosis.rules.crashes.left import explain_left, origin_in_thread
from rankscope.diagnosis.rules.crashes.models_differ import odd_models
from rankscope.diagnosis.rules.crashes.origins import Origin, noted_exception, origin_of
from rankscope.diagnosis.rules.crashes.repeated import without_repeats
from rankscope.diagnosis.views import rank_culprit, where
from rankscope.evidence.model import Evidence, RankEvidence

__all__ = ["Endings", "explain_endings", "explain_exception", "explain_left"]

_EXIT_CODE_HANDICAP_S = 5.0
"""A victim may end itself quickly with a code of its own, before the culprit's process is seen to be gone."""
_BROKEN_CALL_HANDICAP_S = 1.0
"""An exception right after a collective that failed may be what became of another rank's end."""
_NOTICED_LATE_S = 0.3
"""A signal leaves no note of its time: the launcher comes by a little later."""
_SEEN_LATE_S = 1.0
"""The launcher looks at its processes one after another: nearly equal times have no order."""
_SAME_MOMENT_S = 0.25
_CLOCKS_APART_S = 1.0
"""Hosts agree on the time no better than that."""
_NEWEST = 4
"""So many calls back a failed collective may have led to an error."""
_NUMBERS = re.compile(r"\d+")
_OF_SHARED_FILES = frozenset(
    {
        *("OSError", "FileNotFoundError", "FileExistsError", "PermissionError", "IsADirectoryError", "BlockingIOError"),
        *("EOFError", "UnpicklingError", "JSONDecodeError", "BadZipFile", "SafetensorError", "UnicodeDecodeError"),
    }
)
"""Errors that a rank also meets where another one has left a file unwritten or half-written."""


class Endings(msgspec.Struct, frozen=True):
    origin: Finding | None
    """Who began it, among the ranks that ended with a failure; None when all of them are victims, or none failed."""
    victims: tuple[int, ...]
    left: tuple[int, ...]
    """Ranks that ended with code 0 while others had not finished."""


def explain_endings(evidence: Evidence) -> Endings:
    """Pure victims are told by their words: a closed connection, a timeout, an abort by the watchdog."""
    ended = [rank for rank in evidence.ranks if rank.exit is not None and not rank.exit.by_launcher]
    failed = [rank for rank in ended if rank.exit is not None and rank.exit.code != 0]
    found = {rank.rank: origin_of(rank, evidence) for rank in failed}
    origins = [origin for origin in found.values() if origin is not None]
    victims = [rank for rank, origin in found.items() if origin is None]
    for rank in _left(evidence, frozenset(victims)):
        died = origin_in_thread(next(seen for seen in ended if seen.rank == rank), evidence)
        origins += [died] if died is not None else []
    gave_up = [rank.rank for rank in ended if rank.rank not in found and _gave_up(rank, evidence)]
    for settle in (_without_unreached_masters, without_repeats, _without_usual_models):
        origins, also = settle(origins, evidence)
        victims += also
    finding: Finding | None = None
    if origins:
        finding, also = _decide(origins, tuple(sorted(victims)))
        if finding.cause == "address-unreachable":
            finding = _with_those_connecting(finding, evidence)
        victims += also
    left = _left(evidence, frozenset(victims))
    victims += [rank for rank in gave_up if rank in left]
    explained = {*victims, *(culprit.rank for culprit in (finding.culprits if finding is not None else ()))}
    return Endings(finding, tuple(sorted(victims)), tuple(rank for rank in left if rank not in explained))


def _gave_up(rank: RankEvidence, evidence: Evidence) -> bool:
    """It ended with code 0, but because it had lost the others: it caught that error, or a thread died of it."""
    noted = noted_exception(rank)
    return noted is not None and account_of(rank, noted, evidence).victim


def _without_usual_models(origins: list[Origin], evidence: Evidence) -> tuple[list[Origin], list[int]]:
    """DDP's complaint is raised on all ranks; those whose model differs from the others' began it."""
    odd = odd_models(evidence)
    if not any(origin.rank.rank in odd for origin in origins):
        return origins, []
    usual = [origin.rank.rank for origin in origins if origin.rank.rank not in odd]
    return [origin for origin in origins if origin.rank.rank in odd], usual


def _without_unreached_masters(origins: list[Origin], evidence: Evidence) -> tuple[list[Origin], list[int]]:
    """A rank that cannot reach the master is a victim where rank 0 itself failed otherwise, left, or never listened."""
    master = next((rank for rank in evidence.ranks if rank.rank == 0), None)
    if master is None:
        return origins, []
    unreached = [each for each in origins if _names_address(each)]
    if any(each.rank.rank == 0 for each in unreached) or _connecting(master):
        return origins, []
    victims = {each.rank.rank for each in unreached}
    return [each for each in origins if each.rank.rank not in victims], sorted(victims)


def _with_those_connecting(finding: Finding, evidence: Evidence) -> Finding:
    """Ranks that still try the same address have the same mistake; their time has not run out yet."""
    more = []
    for rank in evidence.ranks:
        if _connecting(rank):
            call = next(c for c in rank.progress.calls if c.op == "init_process_group") if rank.progress else None
            at = where(call.site[0]) if call is not None and call.site else None
            more.append(rank_culprit(rank, StillConnects(rank.rank), at))
    return replace(finding, culprits=(*finding.culprits, *more))


def _connecting(master: RankEvidence) -> bool:
    """Rank 0 is alive and has not got past the connection either."""
    progress = master.progress
    calls = progress.calls if progress is not None else ()
    return master.exit is None and any(call.op == "init_process_group" and call.left_at is None for call in calls)


def _names_address(origin: Origin) -> bool:
    known = known_error_of(origin.account.told) if origin.account is not None else None
    return known is not None and known.role == "neutral" and known.cause == "address-unreachable"


def _decide(origins: list[Origin], victims: tuple[int, ...]) -> tuple[Finding, list[int]]:
    """The earliest origin with those that failed alike, and the later ones, which become victims."""
    ordered = sorted(origins, key=_order)
    first = ordered[0]
    alike = [each for each in ordered[1:] if _same_failure(first, each)]
    beside = [each for each in ordered[1:] if each not in alike and _of_its_own(first, each)]
    rest = [each for each in ordered[1:] if each not in alike and each not in beside]
    later = [each for each in rest if each.at >= first.at]
    finding = first.finding
    headline = _headline(first, alike)
    because: list[Fact] = [*finding.because]
    if beside:
        headline = Together((headline, *(each.finding.summary for each in beside)))
        because.append(Together(tuple(each.finding.summary for each in beside)))
        finding = replace(finding, fix=(Advice("mend-each"),))
    if alike:
        because.append(AlsoFailedSo(_numbers(alike)))
    if later:
        because.append(FailedLater(_numbers(later), later[0].at - first.at))
    close = _too_close_to_tell(first, later)
    if close:
        because.append(close)
        finding = replace(finding, certainty="likely" if finding.certainty == "proven" else finding.certainty)
    repeating = {rank for fact in because if isinstance(fact, RepeatsErrorOf) for rank in fact.ranks}
    if not repeating.issuperset(victims):
        because.append(FailedAsConsequence(tuple(rank for rank in victims if rank not in repeating)))
    more = (culprit for each in (*alike, *beside) for culprit in each.finding.culprits)
    finding = replace(
        finding,
        culprits=(*finding.culprits, *more),
        because=tuple(because),
        alternatives=(*finding.alternatives, *_not_the_verdict(first, rest)),
        summary=headline,
    )
    return finding, [each.rank.rank for each in later]


def _numbers(origins: list[Origin]) -> tuple[int, ...]:
    return tuple(sorted(each.rank.rank for each in origins))


def _headline(first: Origin, alike: list[Origin]) -> Fact:
    if not alike:
        return first.finding.summary
    return FailedAlike(_numbers([first, *alike]), first.kind, first.finding.culprits[0].where)


def _not_the_verdict(first: Origin, rest: list[Origin]) -> list[Possibility]:
    return [
        Possibility(each.finding.cause, "possible", Besides(each.finding.summary, earlier=each.at < first.at))
        for each in rest
        if each.at < first.at or each.finding.cause != first.finding.cause
    ]


def _too_close_to_tell(first: Origin, later: list[Origin]) -> ClocksMayDiffer | None:
    hosts = {
        each.rank.host
        for each in later
        if each.rank.host != first.rank.host and each.at - first.at < _CLOCKS_APART_S and each.rank.host
    }
    return ClocksMayDiffer((first.rank.host, *sorted(hosts))) if hosts and first.rank.host else None


def _order(origin: Origin) -> tuple[float, int]:
    """When it failed, as far as the time tells something: an ending that may be a consequence waits for the others."""
    at = origin.at
    if origin.finding.cause == "exit-code" and origin.account is None:
        at += _EXIT_CODE_HANDICAP_S
    elif origin.account is None and signal_of(origin.rank) is not None:
        at -= _NOTICED_LATE_S
    elif _after_broken_call(origin):
        at += _BROKEN_CALL_HANDICAP_S
    return at, origin.rank.rank


def _after_broken_call(origin: Origin) -> bool:
    """A collective of the rank had failed, and the exception is not the one of that call itself."""
    progress, account = origin.rank.progress, origin.account
    if progress is None or account is None or known_error_of(account.told) is not None:
        return False
    failed = [call for call in progress.calls[-_NEWEST:] if call.failed and call.site]
    raised = {(frame.file, frame.line) for frame in account.told.frames}
    return any((call.site[0].file, call.site[0].line) not in raised for call in failed)


def _of_its_own(first: Origin, other: Origin) -> bool:
    """An error raised at the same moment, outside of any collective, that no file of the other rank can have caused."""
    if first.finding.cause != "exception" or other.finding.cause != "exception":
        return False
    if abs(other.at - first.at) > _SAME_MOMENT_S or other.kind in _OF_SHARED_FILES or first.kind in _OF_SHARED_FILES:
        return False
    progress = other.rank.progress
    calls = progress.calls if progress is not None else ()
    return progress is not None and not any(call.failed for call in calls[-_NEWEST:])


def _same_failure(one: Origin, other: Origin) -> bool:
    """The same cause at the same line, or in the same words; of a special cause, with the same kind of error."""
    if one.finding.cause != other.finding.cause:
        return False
    places = one.finding.culprits[0].where, other.finding.culprits[0].where
    if places[0] is not None and places[0] == places[1]:
        return True
    special = one.finding.cause != "exception"
    return one.kind == other.kind and (special or _words(one) == _words(other))


def _words(origin: Origin) -> str:
    """Without the numbers, in which ranks differ."""
    return _NUMBERS.sub("", first_line(origin.account.told.message)) if origin.account is not None else ""


def _left(evidence: Evidence, victims: frozenset[int]) -> tuple[int, ...]:
    found: list[int] = []
    for rank in evidence.ranks:
        if rank.exit is None or rank.exit.code != 0 or rank.exit.by_launcher:
            continue
        left_at = rank.exit.at
        if any(_not_finished(other, left_at, victims) for other in evidence.ranks if other.rank != rank.rank):
            found.append(rank.rank)
    return tuple(found)


def _not_finished(other: RankEvidence, left_at: float, victims: frozenset[int]) -> bool:
    if other.exit is None:
        return True
    needed = other.rank in victims or other.exit.by_launcher
    return needed and other.exit.at >= left_at - _SEEN_LATE_S
