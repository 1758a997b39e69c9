"""An exchange among all ranks in which the shares do not fit: numbers that are wrong from there on, or a hang."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.case import Case
from rankscope.diagnosis.exchanges import Misfit, event_of, find_misfits
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import OtherShares, PairedAnyway, Perhaps, Shares
from rankscope.diagnosis.finding import Finding, Possibility, Way
from rankscope.diagnosis.rules.divergence.call_facts import suspect
from rankscope.diagnosis.verdict import Outcome, Where

_STUCK_S = 2.0
"""In a call whose shares do not fit: longer than any that still completes."""


def explain_misfit(case: Case) -> Finding | None:
    """The earliest of any group, once it is known what came of it."""
    found = [finding for misfit in find_misfits(case.graph.states.values()) if (finding := _finding(misfit, case))]
    return min(found, key=lambda finding: finding.began or 0.0, default=None)


def _finding(misfit: Misfit, case: Case) -> Finding | None:
    outcome = _came_of_it(misfit, case)
    if outcome is None:
        return None
    began = min(call.entered_at for call in misfit.calls.values())
    facts: list[Fact] = [_shares(misfit)]
    if misfit.habit:
        edge = misfit.edges[0]
        partner = edge.receiver if edge.sender in misfit.odd else edge.sender
        facts.append(OtherShares(misfit.odd[0], partner, misfit.habit))
    if outcome == "corrupt":
        facts.append(PairedAnyway(misfit.group, misfit.seq, _made_since(misfit, case)))
    return Finding(
        outcome=outcome,
        cause="collective-mismatch",
        certainty="proven",
        culprits=tuple(
            suspect(case.graph.states[rank], _shares(misfit), _called_at(misfit, rank)) for rank in misfit.odd
        ),
        summary=_shares(misfit),
        because=tuple(facts),
        fix=(Advice("same-shares"), *((Advice("checkpoint-before"),) if outcome == "corrupt" else ())),
        alternatives=(Possibility("collective-skipped", "possible", Perhaps("skipped-before")),),
        victims=tuple(sorted(set(misfit.calls) - set(misfit.odd))) if misfit.odd and outcome == "corrupt" else None,
        ways=() if misfit.odd else _ways(misfit),
        began=began,
        since=began if outcome == "corrupt" else None,
    )


def _came_of_it(misfit: Misfit, case: Case) -> Outcome | None:
    """`corrupt` where all members have completed the call and gone on; `crash` where one of them ended in it; `hang`
    where one stays in it."""
    if all(_is_past(misfit, rank, case) for rank in misfit.calls):
        return "corrupt"
    if case.endings.origin is not None:
        return "crash" if any(_ended_in(misfit, rank, case) for rank in misfit.calls) else None
    stays = any(_is_in(misfit, rank, case) for rank in misfit.calls)
    last = max(call.entered_at for call in misfit.calls.values())
    return "hang" if stays and case.evidence.collected_at - last >= _STUCK_S else None


def _ended_in(misfit: Misfit, rank: int, case: Case) -> bool:
    """The backend raised in the call, or ended the process."""
    seen, call = case.graph.states[rank].seen, misfit.calls[rank]
    return seen is not None and (call.failed or (seen.exit is not None and call.left_at is None))


def _is_past(misfit: Misfit, rank: int, case: Case) -> bool:
    state, call = case.graph.states[rank], misfit.calls[rank]
    if state.seen is not None and state.seen.exit is not None:
        return state.seen.exit.code == 0
    event = event_of(call, state.timeline)
    if event is not None:
        later = state.timeline.after(event.group, event.seq) if state.timeline is not None else ()
        return event.done and any(each.done for each in later)
    return call.left_at is not None and not call.failed and _later(misfit, rank, case) > 0


def _is_in(misfit: Misfit, rank: int, case: Case) -> bool:
    """The program, or its GPU, is in the call."""
    state, call = case.graph.states[rank], misfit.calls[rank]
    if state.seen is None or state.seen.exit is not None or call.failed:
        return False
    event = event_of(call, state.timeline)
    return call.left_at is None or (event is not None and not event.done)


def _later(misfit: Misfit, rank: int, case: Case) -> int:
    """Calls of the group that the rank has made since."""
    seen = case.graph.states[rank].seen
    calls = seen.progress.calls if seen is not None and seen.progress is not None else ()
    return max((call.seq for call in calls if call.group == misfit.group), default=misfit.seq) - misfit.seq


def _made_since(misfit: Misfit, case: Case) -> int:
    return min(_later(misfit, rank, case) for rank in misfit.calls)


def _shares(misfit: Misfit) -> Shares:
    edge = misfit.edges[0]
    speaking = misfit.odd[0] if misfit.odd else edge.sender
    call = misfit.calls[speaking]
    more = len(misfit.edges) - 1
    return Shares(edge.sender, edge.receiver, edge.sent, edge.expected, call.op, _called_at(misfit, speaking), more)


def _called_at(misfit: Misfit, rank: int) -> Where | None:
    site = misfit.calls[rank].site
    return views.where(site[0]) if site else None


def _ways(misfit: Misfit) -> tuple[Way, ...]:
    """The two ends of the first share that does not fit."""
    edge = misfit.edges[0]
    return tuple(Way((rank,), _called_at(misfit, rank), _shares(misfit)) for rank in (edge.sender, edge.receiver))
