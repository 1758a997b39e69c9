"""Ranks that ran into a time limit: for whom they waited, by their own messages."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.offline import log_facts as facts
from rankscope.diagnosis.rules.offline.log_words import (
    DUMP,
    KERNEL,
    MATCH_FIX,
    RERUN,
    STACK,
    culprit,
    last_words,
)
from rankscope.evidence.model import Evidence

_SKIP_FIX = (
    "make every rank reach the same collectives in the same order: look for a condition on the rank or on the data",
    "where one rank works longer (saving, evaluating, preparing data), raise the timeout of the process group",
)


def explain_named_missing(evidence: Evidence) -> Finding | None:
    missing = facts.named_missing(evidence)
    if not missing:
        return None
    waiting = tuple(seen.rank for seen in evidence.ranks if seen.rank not in missing)
    because = (f"the monitored barrier names {views.ranks_text(missing)} as not arrived",)
    # A monitored barrier asks rank after rank and may stop at the first that does not answer.
    return _absent_finding(missing, waiting or (0,), "a monitored barrier", because, evidence, named=True)


def explain_time_limits(evidence: Evidence) -> Finding | None:
    """Ranks whose time was over in a collective: those that were elsewhere, or further back, kept them waiting."""
    timed = facts.timed_out(evidence)
    numbered = {rank: each for rank, each in timed.items() if each.seq is not None}
    if len(numbered) >= 2:
        finding = _different_operations(numbered, evidence) or _laggards(numbered, evidence)
        if finding is not None:
            return finding
    if not timed:
        return None
    everybody = {seen.rank for seen in evidence.ranks if seen.log is not None} | set(range(evidence.world_size))
    absent = tuple(sorted(everybody - set(timed)))
    known = {seen.rank for seen in evidence.ranks if seen.log is not None and seen.log.lines}
    first = min(timed.values(), key=lambda each: (each.line.at or 0.0, each.line.order))
    what = _what(first)
    if not absent:
        return None
    named = set(absent) <= known and 2 * len(absent) < len(everybody)
    because = (
        f"{views.ranks_text(timed)} ran into the time limit of {what}",
        f"{views.ranks_text(absent)} {'tells' if len(absent) == 1 else 'tell'} of no time limit",
    )
    return _absent_finding(absent, tuple(sorted(timed)), what, because, evidence, named)


def _absent_finding(
    absent: tuple[int, ...],
    waiting: tuple[int, ...],
    what: str,
    because: tuple[str, ...],
    evidence: Evidence,
    named: bool,
) -> Finding:
    """Others waited in a collective for ranks that did not come; what kept those is not in the logs."""
    text = views.ranks_text(absent)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely" if named else "possible",
        culprits=tuple(culprit(rank, f"did not come to {what}", evidence) for rank in absent) if named else (),
        summary=f"{views.ranks_text(waiting)} waited in {what} until the time was over; {text} did not come to it",
        because=(*because, *(last_words(rank, evidence) for rank in absent[:3])),
        fix=_SKIP_FIX,
        alternatives=(
            Possibility("slow-rank", "possible", f"{text} may have been at work longer than the time limit", STACK),
            Possibility("blocked-call", "possible", f"{text} may stand in a call that does not return", STACK),
            Possibility("killed", "possible", f"{text} may have been killed without a word", KERNEL),
        ),
        references=("pytorch/pytorch#54059",),
        next=(DUMP, RERUN),
    )


def _what(timed: facts.TimedOut) -> str:
    if timed.seq is None:
        return "a collective"
    if timed.op == "ALLREDUCE" and timed.numel == 1:
        return f"ALLREDUCE {timed.seq} of one element (usually a barrier)"
    return f"{timed.op} {timed.seq}"


def _different_operations(numbered: dict[int, facts.TimedOut], evidence: Evidence) -> Finding | None:
    """At one place of the sequence some wait in one operation and some in another."""
    by_seq: dict[int, dict[tuple[str, int | None], list[int]]] = {}
    for rank, each in numbered.items():
        if each.seq is not None:
            by_seq.setdefault(each.seq, {}).setdefault((each.op, each.numel), []).append(rank)
    for seq, sides in sorted(by_seq.items()):
        if len(sides) < 2 or len({op for op, _ in sides}) < 2:
            continue
        ordered = sorted(sides.items(), key=lambda side: len(side[1]))
        (op, numel), guilty = ordered[0]
        tied = len(ordered[0][1]) == len(ordered[-1][1])
        parts = [f"{views.ranks_text(ranks)} waited in {name} of {size} elements" for (name, size), ranks in ordered]
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="likely",
            culprits=() if tied else tuple(culprit(r, f"waited in {op} of {numel} elements", evidence) for r in guilty),
            summary=f"at collective {seq} the ranks made different calls: {'; '.join(parts)}",
            because=(*parts, "operations that differ at one place of the sequence never match"),
            fix=MATCH_FIX,
            alternatives=(
                Possibility("collective-skipped", "likely", "a call before may be missing on one side", DUMP),
            ),
            references=("pytorch/pytorch#68803",),
            next=(DUMP,),
        )
    return None


def _laggards(numbered: dict[int, facts.TimedOut], evidence: Evidence) -> Finding | None:
    """The rank that had entered the fewest collectives is the one the others waited for."""
    entered = facts.enqueued_counts(evidence) or {rank: each.seq or 0 for rank, each in numbered.items()}
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
    because = (
        f"{views.ranks_text([each.rank for each in waited])} had entered collective {first.seq} and waited in it",
        f"{views.ranks_text(behind)} had entered {least} only",
    )
    waiting = tuple(sorted(each.rank for each in waited))
    return _absent_finding(behind, waiting, _what(first), because, evidence, named=True)
