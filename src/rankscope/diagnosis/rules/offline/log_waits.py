"""Ranks that ran into a time limit: for whom they waited, by their own messages."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.logs import (
    BarrierNames,
    DidNotCome,
    HadEntered,
    LoggedCall,
    May,
    NeverFinished,
    NeverMatch,
    OperationsDiffer,
    RanIntoTimeLimit,
    ToldNoTimeLimit,
    WaitedIn,
    WaitedInVain,
)
from rankscope.diagnosis.facts.nothing_found import MayStand
from rankscope.diagnosis.finding import Finding, Possibility, Way
from rankscope.diagnosis.rules.offline import log_facts
from rankscope.diagnosis.rules.offline.log_facts import TimedOut
from rankscope.diagnosis.rules.offline.log_phases import FIRST_GATHER
from rankscope.diagnosis.rules.offline.log_ranks import DUMP, KERNEL, MATCH_FIX, RERUN, STACK, culprit, last_line
from rankscope.evidence.model import Evidence

_MONITORED_BARRIER = LoggedCall("monitoredBarrier")


def explain_named_missing(evidence: Evidence) -> Finding | None:
    missing = log_facts.named_missing(evidence)
    if not missing:
        return None
    waiting = tuple(seen.rank for seen in evidence.ranks if seen.rank not in missing)
    # A monitored barrier asks rank after rank and may stop at the first that does not answer.
    return _named(missing, waiting or (0,), _MONITORED_BARRIER, (BarrierNames(missing),), evidence)


def explain_time_limits(evidence: Evidence) -> Finding | None:
    """Ranks whose time was over in a collective: those that were elsewhere, or further back, kept them waiting."""
    timed = log_facts.timed_out(evidence)
    if not timed:
        return None
    numbered = {rank: each for rank, each in timed.items() if each.seq is not None}
    return (
        _different_operations(numbered, evidence) or _laggards(numbered, evidence) or _without_time_out(timed, evidence)
    )


def _without_time_out(timed: dict[int, TimedOut], evidence: Evidence) -> Finding | None:
    everybody = {seen.rank for seen in evidence.ranks if seen.log is not None} | set(range(evidence.world_size))
    absent = tuple(sorted(everybody - set(timed)))
    if not absent:
        return _never_finished(timed)
    known = {seen.rank for seen in evidence.ranks if seen.log is not None and seen.log.lines}
    waiting = tuple(sorted(timed))
    call = _call(min(timed.values(), key=lambda each: (each.line.at or 0.0, each.line.order)))
    because = (RanIntoTimeLimit(waiting, call), ToldNoTimeLimit(absent))
    if set(absent) <= known and 2 * len(absent) < len(everybody):
        return _named(absent, waiting, call, because, evidence)
    return _in_vain(absent, waiting, call, because, evidence)


def _never_finished(timed: dict[int, TimedOut]) -> Finding | None:
    """Nobody was missing: all were in the same call. It is the communication itself, or it takes too long."""
    calls = {(each.op, each.seq, each.numel) for each in timed.values()}
    if len(timed) < 2 or len(calls) != 1 or any(each.seq is None for each in timed.values()):
        return None
    ranks = tuple(sorted(timed))
    found = NeverFinished(ranks, _call(timed[ranks[0]]))
    gathers = "GATHER" in found.call.op.upper()
    return Finding(
        outcome="hang",
        cause="comm-error",
        certainty="likely",
        culprits=(),
        summary=found,
        because=(found,),
        fix=(
            Advice("give-it-more-time"),
            Advice("try-the-links"),
            *((Advice("without-mixed-precision"),) if gathers else ()),
        ),
        alternatives=(Possibility("gpu-stuck", "possible", MayStand("gpu-stuck", "forward"), STACK),),
        references=FIRST_GATHER if gathers else ("pytorch/pytorch#54059",),
        next=(DUMP, RERUN),
        victims=ranks,
    )


_FIX = (Advice("same-collectives-everywhere"), Advice("raise-group-timeout"))


def _named(
    absent: tuple[int, ...], waiting: tuple[int, ...], call: LoggedCall, because: tuple[Fact, ...], evidence: Evidence
) -> Finding:
    """The absent are few enough, and known well enough, to be named."""
    culprits = tuple(culprit(rank, DidNotCome(call), evidence) for rank in absent)
    return replace(_in_vain(absent, waiting, call, because, evidence), certainty="likely", culprits=culprits)


def _in_vain(
    absent: tuple[int, ...], waiting: tuple[int, ...], call: LoggedCall, because: tuple[Fact, ...], evidence: Evidence
) -> Finding:
    """Others waited in a collective for ranks that did not come; what kept those is not in the logs."""
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=WaitedInVain(waiting, call, absent),
        because=(*because, *(last_line(rank, evidence) for rank in absent[:3])),
        fix=_FIX,
        alternatives=_kept_by(absent),
        references=("pytorch/pytorch#54059",),
        next=(DUMP, RERUN),
    )


def _kept_by(absent: tuple[int, ...]) -> tuple[Possibility, ...]:
    return (
        Possibility("slow-rank", "possible", May(absent, "work"), STACK),
        Possibility("blocked-call", "possible", May(absent, "block"), STACK),
        Possibility("killed", "possible", May(absent, "killed"), KERNEL),
    )


def _call(timed: TimedOut) -> LoggedCall:
    return LoggedCall("") if timed.seq is None else LoggedCall(timed.op, timed.seq, timed.numel)


def _different_operations(numbered: dict[int, TimedOut], evidence: Evidence) -> Finding | None:
    """At one place of the sequence some wait in one operation and some in another."""
    by_seq: dict[int, dict[tuple[str, int | None], list[int]]] = {}
    for rank, each in numbered.items():
        if each.seq is not None:
            by_seq.setdefault(each.seq, {}).setdefault((each.op, each.numel), []).append(rank)
    for seq, calls in sorted(by_seq.items()):
        if len({op for op, _ in calls}) < 2:
            continue
        fewest_first = sorted(calls.items(), key=lambda side: len(side[1]))
        sides = tuple(WaitedIn(tuple(ranks), LoggedCall(op, seq, numel)) for (op, numel), ranks in fewest_first)
        tied = len(sides[0].ranks) == len(sides[-1].ranks)
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="likely",
            culprits=() if tied else tuple(culprit(rank, sides[0], evidence) for rank in sides[0].ranks),
            summary=OperationsDiffer(seq, sides),
            because=(*sides, NeverMatch()),
            fix=MATCH_FIX,
            alternatives=(Possibility("collective-skipped", "likely", May((), "skip-before"), DUMP),),
            references=("pytorch/pytorch#68803",),
            next=(DUMP,),
            ways=tuple(Way(side.ranks, None, side.call) for side in sides) if tied else (),
        )
    return None


def _laggards(numbered: dict[int, TimedOut], evidence: Evidence) -> Finding | None:
    """The rank that had entered the fewest collectives is the one the others waited for."""
    if len(numbered) < 2:
        return None
    entered = log_facts.enqueued_counts(evidence) or {rank: each.seq or 0 for rank, each in numbered.items()}
    if len(entered) < 2:
        return None
    least, most = min(entered.values()), max(entered.values())
    behind = tuple(sorted(rank for rank, count in entered.items() if count == least))
    waited = [each for rank, each in numbered.items() if rank not in behind and each.seq is not None]
    if least == most or not waited or 2 * len(behind) >= len(entered):
        return None
    first = min(waited, key=lambda each: each.seq or 0)
    if first.seq is None or least >= first.seq:
        return None
    waiting = tuple(sorted(each.rank for each in waited))
    because = (HadEntered(waiting, first.seq, waited=True), HadEntered(behind, least, waited=False))
    return _named(behind, waiting, _call(first), because, evidence)
