"""A rank that ended well, with code 0, while other ranks still needed it."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.endings import (
    EndedWith,
    HandledSignals,
    LeftEarly,
    LeftTogether,
    LeftWhileNeeded,
    LoaderEnded,
    NeverJoined,
    StillNeededBy,
)
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.loaders import Shortage, shortages
from rankscope.diagnosis.rules.crashes.chains import Account, account_of, short_type
from rankscope.diagnosis.rules.crashes.exceptions import explain_account, place_of, raised_fact, story
from rankscope.diagnosis.rules.crashes.origins import Origin, noted_exception
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import rank_culprit, where
from rankscope.evidence.model import Evidence, RankEvidence

_LEFT_FIX = (Advice("stop-together"), Advice("same-calls-at-end"))
_UNEVEN_FIX = (Advice("same-number-of-batches"), Advice("train-in-join"))
_MISSING_FIX = (Advice("all-ranks-join"),)


def explain_left(rank: RankEvidence, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """Why others miss a rank that ended with code 0: out of data, never joined, died in a thread, or simply gone."""
    died = origin_in_thread(rank, evidence)
    if died is not None:
        return replace(died.finding, because=(*died.finding.because, *_needed(rank, waiters)))
    noted = noted_exception(rank)
    account = account_of(rank, noted, evidence) if noted is not None else None
    left = LeftEarly(rank.rank, rank.progress.steps if rank.progress is not None else None, _place_of_leaving(rank))
    finding = Finding(
        outcome="crash" if _failed(evidence) else "hang",
        cause="rank-left",
        certainty="proven",
        culprits=(),
        summary=left,
        because=(left,),
        fix=_LEFT_FIX,
    )
    finding = _never_joined(finding, rank, evidence) or _out_of_data(finding, rank, evidence) or finding
    if finding.cause != "rank-left":
        finding = replace(finding, alternatives=(Possibility("rank-left", "possible", LeftWhileNeeded()),))
    elif account is not None and not account.victim:
        finding = _after_exception(finding, rank, left, account)
    if isinstance(finding.summary, LeftEarly):
        left = finding.summary
    handled = rank.progress.signals if rank.progress is not None else ()
    return replace(
        finding,
        culprits=(rank_culprit(rank, left, left.at),),
        because=(*finding.because, *((HandledSignals(handled),) if handled else ()), *_needed(rank, waiters)),
    )


def left_together(found: list[Finding]) -> Finding:
    """Ranks that left at one moment: those that did it for the first one's reason are culprits with it."""
    first = found[0]
    alike = [finding for finding in found[1:] if finding.cause == first.cause]
    if not alike:
        return first
    more = tuple(culprit for finding in alike for culprit in finding.culprits)
    others = tuple(culprit.rank for culprit in more if culprit.rank is not None)
    return replace(first, culprits=(*first.culprits, *more), summary=LeftTogether(first.summary, others))


def origin_in_thread(rank: RankEvidence, evidence: Evidence) -> Origin | None:
    """The program waited for a thread that did the work, and ended well although that one had failed."""
    noted = noted_exception(rank)
    if noted is None or noted.thread == "MainThread" or rank.exit is None or rank.exit.code != 0:
        return None
    account = account_of(rank, noted, evidence)
    if account.victim:
        return None
    finding = explain_account(rank, account, evidence)
    finding = replace(
        finding,
        outcome="crash",
        certainty="likely",
        because=(*finding.because, EndedWith(rank.rank, rank.exit.code)),
        alternatives=(*finding.alternatives, Possibility("rank-left", "possible", LeftWhileNeeded())),
    )
    at = noted.at if noted.at is not None else rank.exit.at
    return Origin(rank, finding, at, short_type(account.told), account)


def _after_exception(finding: Finding, rank: RankEvidence, left: LeftEarly, account: Account) -> Finding:
    """The program caught an exception and ended well because of it: that line explains more than the one it left at."""
    if account.told.type == "KeyboardInterrupt":
        return finding
    raised = changed(raised_fact(rank.rank, account), fate="caught")
    left = changed(left, at=place_of(account) or left.at)
    return replace(finding, summary=left, because=(left, raised, *story(account, account.told)))


def _needed(rank: RankEvidence, waiters: tuple[int, ...]) -> tuple[Fact, ...]:
    others = tuple(number for number in waiters if number != rank.rank)
    return (StillNeededBy(others),) if others else ()


def _failed(evidence: Evidence) -> bool:
    return any(
        other.exit is not None and other.exit.code != 0 and not other.exit.by_launcher for other in evidence.ranks
    )


def _never_joined(finding: Finding, rank: RankEvidence, evidence: Evidence) -> Finding | None:
    if rank.progress is None or rank.progress.declared_world != 0:
        return None
    joined = tuple(
        other.rank
        for other in evidence.ranks
        if other.rank != rank.rank and other.progress is not None and other.progress.declared_world > 0
    )
    if not joined:
        return None
    return replace(finding, cause="rank-missing", because=(*finding.because, NeverJoined(joined)), fix=_MISSING_FIX)


def _out_of_data(finding: Finding, rank: RankEvidence, evidence: Evidence) -> Finding | None:
    """It came to the end of a loader before another rank did."""
    if not isinstance(finding.summary, LeftEarly):
        return None
    written = {seen.rank: seen.progress for seen in evidence.ranks if seen.progress is not None}
    short = shortages(written).get(rank.rank)
    certain = short is not None
    short = short or _perhaps_short(rank, evidence)
    if short is None:
        return None
    left = changed(finding.summary, out_of_data=True)
    return replace(
        finding,
        cause="uneven-data",
        certainty="proven" if certain else "likely",
        summary=left,
        because=(left, LoaderEnded(short.batches, short.other, short.other_batches)),
        fix=_UNEVEN_FIX,
    )


def _perhaps_short(rank: RankEvidence, evidence: Evidence) -> Shortage | None:
    """Another rank has taken as many batches and is not at the end of its loader."""
    loader = rank.progress.loader if rank.progress is not None else None
    if loader is None or not loader.exhausted:
        return None
    for other in evidence.ranks:
        theirs = other.progress.loader if other.progress is not None and other.rank != rank.rank else None
        if theirs is None or theirs.exhausted or theirs.number != loader.number:
            continue
        if theirs.batches == loader.batches:
            return Shortage(loader.batches, other.rank, theirs.batches)
    return None


def _place_of_leaving(rank: RankEvidence) -> Where | None:
    progress = rank.progress
    if progress is None:
        return None
    if progress.exit_site:
        return where(progress.exit_site[0])
    sites = [call.site[0] for call in progress.calls if call.site]
    return where(sites[-1]) if sites else None
