"""A rank that came to a collective after the others' time in it had run out: by then they had given it up."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.roots import CameLate, TimedOut
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.chains import known_error_of
from rankscope.diagnosis.verdict import Where
from rankscope.evidence.model import Call, Evidence, RankEvidence


def explain_late(evidence: Evidence, victims: tuple[int, ...]) -> Finding | None:
    """By the times at which the ranks entered the call and left it; None where nobody came too late."""
    seen = {rank.rank: rank for rank in evidence.ranks}
    given_up = {rank: call for rank in victims if (call := _given_up(seen[rank])) is not None}
    if not given_up:
        return None
    first = min(given_up.values(), key=lambda call: call.left_at or 0.0)
    left_at = first.left_at or 0.0
    late = {rank: call for rank, each in seen.items() if (call := _same(each, first)) and call.entered_at > left_at}
    if not late or set(late) & set(given_up):
        return None
    waited = tuple(
        sorted(rank for rank, call in given_up.items() if (call.group, call.seq) == (first.group, first.seq))
    )
    limit = left_at - first.entered_at
    facts = {
        rank: CameLate(rank, call.op, views.where(call.site[0]) if call.site else None, waited, limit, by)
        for rank, call in sorted(late.items())
        if (by := call.entered_at - left_at) > 0
    }
    slowest = max(facts.values(), key=lambda fact: fact.late_s)
    return Finding(
        outcome="hang",
        cause="slow-rank",
        certainty="likely",
        culprits=tuple(
            views.rank_culprit(seen[rank], fact, _busy_at(seen[rank]) or fact.where) for rank, fact in facts.items()
        ),
        summary=slowest,
        because=(*facts.values(), TimedOut(waited)),
        fix=(Advice("raise-time-limit"), Advice("work-before-group")),
        references=("hiyouga/LlamaFactory#360",),
        victims=tuple(sorted(set(victims) - set(facts))),
        began=first.entered_at,
    )


def _given_up(rank: RankEvidence) -> Call | None:
    """The collective in which the rank's time ran out, its last."""
    errors = [known_error_of(error) for error in rank.exceptions]
    if not any(error is not None and error.role == "victim" and error.waited for error in errors):
        return None
    calls = [call for call in rank.progress.calls if call.depth == 0 and call.seq] if rank.progress is not None else []
    return calls[-1] if calls and calls[-1].failed and calls[-1].left_at is not None else None


def _same(rank: RankEvidence, call: Call) -> Call | None:
    calls = rank.progress.calls if rank.progress is not None else ()
    return next((c for c in calls if c.depth == 0 and (c.group, c.seq, c.op) == (call.group, call.seq, call.op)), None)


def _busy_at(rank: RankEvidence) -> Where | None:
    """Where an earlier look had found it at work."""
    stacks = [thread for sample in rank.earlier_stacks if (thread := views.main_thread(sample)) is not None]
    return views.where(views.innermost_user_frame(stacks[-1].frames)) if stacks else None
