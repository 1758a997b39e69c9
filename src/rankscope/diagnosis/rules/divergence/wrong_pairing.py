"""Calls that do not belong together, were paired all the same, and the job went on: its numbers are wrong since."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.blame import Blame, blame, condition
from rankscope.diagnosis.case import Case
from rankscope.diagnosis.desync import Desync, find_desync, groups_of, paired, went_past
from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.calls import (
    Called,
    Condition,
    NotCome,
    Now,
    PairedAnyway,
    Perhaps,
    Skipped,
    WrongPair,
)
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rules.divergence.call_facts import called, first_difference, now, suspect, ways
from rankscope.diagnosis.rules.divergence.crossed_calls import call_before, came_early, crossed, swapped
from rankscope.diagnosis.rules.divergence.parted import is_mismatch, summary_of, went_on
from rankscope.diagnosis.rules.divergence.uneven import short_of_data
from rankscope.diagnosis.sequences import Kind
from rankscope.diagnosis.timeline import Event
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.wait_graph import State
from rankscope.evidence.model import Frame

_FIX = Advice("checkpoint-before")

_LEAST_SHIFTED = 4
"""Calls that agree one call apart before that is no accident."""
_LEAST_SHIFTED_BY_STEPS = 2
"""The same where their optimizer steps agree as well."""


def explain_wrong_pairing(case: Case) -> Finding | None:
    """The earliest wrong pairing of any group after which its ranks went on; None without one."""
    found = [finding for group in groups_of(case.graph.states.values()) if (finding := _in_group(group, case))]
    return min(found, key=lambda finding: finding.began or 0.0, default=None)


def stuck_since(earlier: Finding | None, found: Finding, case: Case) -> Finding:
    """A job that hangs: where its calls had been paired wrongly before, that is what it hangs for in the end."""
    if earlier is None:
        return found
    return replace(
        earlier,
        outcome=found.outcome,
        certainty=found.certainty,
        because=(*earlier.because, now(case.graph)),
        victims=None,
        since=None,
    )


def _in_group(group: str, case: Case) -> Finding | None:
    states = case.graph.states
    desync = case.graph.once(find_desync, group)
    if desync is None or not went_past(desync, states):
        return None
    if desync.kind == "doubt":
        return _by_source(desync.divergence, case)
    divergence = desync.divergence
    certainty: Certainty = "proven" if desync.contradiction is not None else "likely"
    uneven = short_of_data(divergence, case.graph, case.code)
    if uneven is not None:
        return _corrupt(uneven, certainty, desync, case)
    if desync.either:
        divergence = _by_conditions(divergence, case)
    decided = blame(divergence, states, case.code)
    if _is_mismatch(desync, case):
        return _corrupt(_mismatched(divergence, decided, case), certainty, desync, case)
    return _corrupt(_skipped(divergence, decided, case), certainty, desync, case)


def _by_conditions(divergence: Divergence, case: Case) -> Divergence:
    """In a short loop a call more and one fewer look alike. The call that stands under a condition of its own was made
    in addition, or left out."""
    usual, odd = divergence.sides
    made, left_out = (_own_condition(*pair, case) for pair in ((odd, usual), (usual, odd)))
    if made == left_out:
        return divergence
    return replace(divergence, sides=(usual, replace(odd, kind="extra" if made else "skipped")))


def _own_condition(side: Side, other: Side, case: Case) -> bool:
    frame = _differing(side, other)
    return frame is not None and case.code.condition_of(frame, past=_differing(other, side)) is not None


def _is_mismatch(desync: Desync, case: Case) -> bool:
    """One call in place of another, by the source or by how the sequences go on."""
    divergence = desync.divergence
    if is_mismatch(divergence, case.code) or swapped(divergence, case.graph.states):
        return True
    kinds = {side.kind for side in divergence.sides[1:]}
    first = divergence.sides[0].event
    here = first is not None and any(
        side.event is not None and not paired(first, side.event) for side in divergence.sides
    )
    return here and kinds <= {"changed", None}


# By the source: calls from lines that nobody had called from before.


def _by_source(divergence: Divergence, case: Case) -> Finding | None:
    usual, odd = divergence.sides
    states = case.graph.states
    decided = blame(divergence, states, case.code)
    if not set(decided.ranks) <= set(odd.ranks):
        return None
    desync = Desync("doubt", divergence)
    if call_before(odd, usual, divergence, states, case.code):
        extra = replace(decided, extra=True)
        finding = _skipped(replace(divergence, sides=(usual, replace(odd, kind="extra", count=1))), extra, case)
        return _corrupt(finding, "likely", desync, case)
    shifted = _shifted(divergence, case)
    if shifted is not None:
        return _corrupt(_skipped(shifted, blame(shifted, states, case.code), case), "likely", desync, case)
    early = came_early(odd, usual, divergence, states)
    if early and not decided.extra:
        left_out = replace(divergence, sides=(usual, replace(odd, kind="skipped", count=early)))
        return _corrupt(_skipped(left_out, decided, case), "likely", desync, case)
    if crossed(odd, usual, divergence, states, case.code):
        return _corrupt(_mismatched(divergence, decided, case), "likely", desync, case)
    return None


def _shifted(divergence: Divergence, case: Case) -> Divergence | None:
    """Two calls that were swapped are followed by calls that agree. After one more or one fewer, all that is known
    differs place by place and agrees one call apart: with which of the two, the optimizer steps tell soon, and lines
    alone where they do not come round again."""
    usual, odd = (case.graph.states[side.ranks[0]].timeline for side in divergence.sides)
    if usual is None or odd is None:
        return None
    mine, theirs = (
        [(e.site, e.step) for e in each.after(divergence.group, divergence.seq - 1)] for each in (usual, odd)
    )
    stepped = all(step >= 0 for _, step in (*mine, *theirs))
    known = min(len(mine), len(theirs)) - 1
    if known < (_LEAST_SHIFTED_BY_STEPS if stepped else _LEAST_SHIFTED):
        return None
    if any(one[0] == other[0] for one, other in zip(mine, theirs, strict=False)):
        return None
    kinds: list[Kind] = []
    if mine[1 : known + 1] == theirs[:known]:
        kinds.append("skipped")
    if theirs[1 : known + 1] == mine[:known]:
        kinds.append("extra")
    if len(kinds) == 1:
        first, second = divergence.sides
        return replace(divergence, sides=(first, replace(second, kind=kinds[0], count=1)))
    by_conditions = _by_conditions(divergence, case)
    return by_conditions if kinds and by_conditions.sides[1].kind is not None else None


# Findings.


def _corrupt(finding: Finding, certainty: Certainty, desync: Desync, case: Case) -> Finding:
    divergence = desync.divergence
    guilty = {culprit.rank for culprit in finding.culprits}
    everybody = {rank for side in divergence.sides for rank in side.ranks}
    began = min(side.event.at for side in divergence.sides if side.event is not None)
    last = min(
        timeline.newest.get(divergence.group, 0)
        for rank in everybody
        if (timeline := case.graph.states[rank].timeline) is not None
    )
    facts: list[Fact] = [fact for fact in finding.because if not isinstance(fact, Now)]
    calls = [at for at, fact in enumerate(facts) if isinstance(fact, Called)]
    later = desync.contradiction
    apart = [] if later is None or later[0].seq == divergence.seq else [_called_alone(event, case) for event in later]
    paired_so = PairedAnyway(divergence.group, divergence.seq, max(0, last - divergence.seq), tuple(apart))
    facts.insert(calls[-1] + 1 if calls else 0, paired_so)
    return replace(
        finding,
        outcome="corrupt",
        certainty=certainty,
        because=tuple(facts),
        fix=(*finding.fix, _FIX),
        victims=tuple(sorted(everybody - guilty)) if guilty else (),
        ways=() if guilty else ways(divergence),
        began=began,
        since=began,
    )


def _called_alone(event: Event, case: Case) -> Called:
    """A later call of the rank that made it, with its place."""
    rank = next(
        (
            rank
            for rank, state in case.graph.states.items()
            if state.timeline is not None and state.timeline.at(event.group, event.seq) is event
        ),
        -1,
    )
    at = views.where(event.site[0]) if event.site else None
    return Called((rank,), event.op, at, event.numel, event.dtype, event.root, event.step)


def _mismatched(divergence: Divergence, decided: Blame, case: Case) -> Finding:
    calls = tuple(called(side, divergence) for side in divergence.sides)
    return Finding(
        outcome="corrupt",
        cause="collective-mismatch",
        certainty="proven",
        culprits=_culprits(divergence, decided, calls, case.graph.states),
        summary=WrongPair(calls),
        because=(first_difference(divergence, case.graph), *calls, *decided.reasons),
        fix=(Advice("same-call"), Advice("decide-together")),
        alternatives=(Possibility("collective-skipped", "possible", Perhaps("skipped-before")),),
    )


def _culprits(
    divergence: Divergence, decided: Blame, calls: tuple[Called | NotCome, ...], states: dict[int, State]
) -> tuple[Suspect, ...]:
    return tuple(
        suspect(states[rank], call, views.where(side.site[0]) if side.site else None)
        for side, call in zip(divergence.sides, calls, strict=True)
        for rank in side.ranks
        if rank in decided.ranks
    )


def _skipped(divergence: Divergence, decided: Blame, case: Case) -> Finding:
    states = case.graph.states
    decided = _by_the_edit(divergence, decided)
    calls = tuple(called(side, divergence) for side in divergence.sides)
    summary = summary_of(divergence, decided)
    reasons: tuple[Fact, ...] = decided.reasons
    if decided.ranks and not decided.extra:
        at, why = _passed_by(divergence, decided, case)
        reasons = (*reasons, *(each for each in why if each not in reasons))
        if isinstance(summary, Skipped):
            summary = changed(summary, where=at or summary.where)
        culprits = tuple(suspect(states[rank], summary, why[0].where if why else at) for rank in sorted(decided.ranks))
    else:
        culprits = _culprits(divergence, decided, calls, states)
    return Finding(
        outcome="corrupt",
        cause="collective-skipped",
        certainty="proven",
        culprits=culprits,
        summary=summary,
        because=(
            first_difference(divergence, case.graph),
            *calls,
            *reasons,
            *went_on(divergence, decided),
        ),
        fix=(Advice("same-collectives"), Advice("decide-together")),
        alternatives=(Possibility("collective-mismatch", "possible", Perhaps("calls-differ")),),
    )


def _by_the_edit(divergence: Divergence, decided: Blame) -> Blame:
    """How the sequences go on tells whether those to blame made a call more or one fewer."""
    odd = [side for side in divergence.sides if set(side.ranks) <= set(decided.ranks)]
    if len(odd) != 1:
        return decided
    kinds = {side.kind for side in divergence.sides}
    if len(divergence.sides) != 2 or not kinds & {"extra", "skipped"}:
        return decided
    # One side is compared with the other: where that is the one to blame, it is the other way round.
    extra = ("extra" in kinds) == (odd[0].kind is not None)
    led = [reason for reason in decided.reasons if isinstance(reason, Condition) and reason.effect == "leads-past"]
    reasons = tuple(reason for reason in decided.reasons if not (extra and reason in led))
    return replace(decided, extra=extra, reasons=reasons)


def _passed_by(divergence: Divergence, decided: Blame, case: Case) -> tuple[Where | None, tuple[Condition, ...]]:
    """The call that was left out, on the line on which the ways differ, and the condition that it depends on."""
    odd = next(side for side in divergence.sides if set(side.ranks) <= set(decided.ranks))
    usual = next(side for side in divergence.sides if side is not odd)
    conditions = tuple(reason for reason in decided.reasons if isinstance(reason, Condition))
    frame = _differing(usual, odd)
    if frame is None:
        return (views.where(usual.site[0]) if usual.site else None), conditions
    if not conditions:
        found = case.code.condition_of(frame, past=_differing(odd, usual))
        conditions = () if found is None else (condition(frame, found, "keeps-from", odd.ranks),)
    return next((each.target for each in conditions if each.target is not None), views.where(frame)), conditions


def _differing(side: Side, other: Side) -> Frame | None:
    """The outermost frame of a side on which the two ways differ."""
    for mine, theirs in zip(reversed(side.site), reversed(other.site), strict=False):
        if (mine.file, mine.line) != (theirs.file, theirs.line):
            return mine
    return None
