"""Hangs of which only flight-recorder dumps are left: who has not entered what the others wait in."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.divergence import Side, find_divergence
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rules.divergence.waiting_words import call_text, group_text
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.waiting import recorded_only
from rankscope.diagnosis.waits import State, WaitGraph, members_of
from rankscope.evidence.model import Evidence, Frame

_FIX = (
    "look at what that rank does after its last collective: a branch that skips the call, an exception that is "
    "caught, a call that does not return",
    "run the job with `rankscope run`: it also sees where a rank stands that is in no collective",
)
_STACK = "see where the rank stands: `py-spy dump --pid PID` on its host, then give the dump to rankscope diagnose too"
_LOG = "read the end of that rank's log: an exception, a signal, the memory killer; give the log to rankscope diagnose"


def explain_absent(graph: WaitGraph, evidence: Evidence) -> Finding | None:
    """Ranks wait in a collective that others have not entered, and dumps are all there is. None where somebody was
    seen otherwise: then the stacks tell more."""
    if not evidence.ranks or not all(recorded_only(seen) for seen in evidence.ranks):
        return None
    waits = [state for state in graph.states.values() if state.wait is not None and state.wait.group]
    if not waits:
        return None
    first = min(waits, key=lambda state: state.wait.since if state.wait is not None else 0.0)
    wait = first.wait
    assert wait is not None
    waiting = tuple(state.rank for state in waits if state.wait is not None and _same_place(state, first))
    roots = [rank for rank in graph.edges.get(first.rank, ()) if graph.states[rank].kind != "waiting"]
    absent = tuple(sorted(roots))
    if not absent:
        return None
    unseen = tuple(rank for rank in absent if not _has_dump(graph.states[rank]))
    if unseen and len(unseen) < len(absent):
        return _undecided(waiting, absent, first, unseen)
    if unseen:
        return _without_dump(unseen, waiting, first, graph)
    return _not_joined(absent, waiting, first, graph, evidence)


def _has_dump(state: State) -> bool:
    return state.seen is not None and "collectives" not in state.seen.missing


def _same_place(state: State, other: State) -> bool:
    one, two = state.wait, other.wait
    return one is not None and two is not None and (one.group, one.seq) == (two.group, two.seq)


def _site_text(site: tuple[Frame, ...]) -> str:
    return views.place(views.where(site[0])) if site else "a line that the dump does not tell"


def _last_call(state: State) -> tuple[str, Where | None]:
    """What the rank's record ends with."""
    entries = state.seen.collectives if state.seen is not None else ()
    if not entries:
        return "its record holds no collective", None
    newest = max(entries, key=lambda entry: entry.record_id)
    site = tuple(frame for frame in newest.frames if frame.user)
    number = f" {newest.seq}" if newest.seq and not newest.p2p else ""
    text = f"its last recorded call is {newest.op}{number} of {group_text(newest.group)} at {_site_text(site)}"
    return text, views.where(site[0]) if site else None


def _facts(waiting: tuple[int, ...], first: State) -> tuple[str, ...]:
    wait = first.wait
    assert wait is not None
    at = _site_text(wait.site)
    return (f"{views.ranks_text(waiting)} entered {call_text(first)} at {at} and did not finish it",)


def _not_joined(
    absent: tuple[int, ...], waiting: tuple[int, ...], first: State, graph: WaitGraph, evidence: Evidence
) -> Finding:
    wait = first.wait
    assert wait is not None
    code = CodeReader(evidence)
    decided = None
    divergence = find_divergence(wait.group, graph.states)
    if divergence is not None and len(divergence.sides) > 1:
        decided = blame(divergence, graph.states, code)
    guard = code.guard(wait.site)
    readable = any(source.file == frame.file for source in evidence.sources for frame in wait.site[:1])
    facts = list(_facts(waiting, first))
    facts += [f"rank {rank} did not: {_last_call(graph.states[rank])[0]}" for rank in absent[:3]]
    if decided is not None and decided.reserved:
        facts += decided.reasons
        guilty = decided.ranks
        if set(guilty) <= set(waiting):
            return _extra_call(guilty, first, graph, tuple(facts))
    elif 2 * len(absent) < len(absent) + len(waiting):
        facts.append("they are the fewer: the others came to the call")
        guilty = absent
    elif readable and guard is None and len(absent) <= len(waiting):
        facts.append("the call depends on no condition")
        guilty = absent
    else:
        return _undecided(waiting, absent, first, ())
    culprits = []
    for rank in guilty:
        state = graph.states[rank]
        if state.seen is not None:
            text, at = _last_call(state)
            culprits.append(views.rank_culprit(state.seen, f"has not entered {call_text(first)}; {text}", at))
    at_text = _site_text(wait.site)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=tuple(culprits),
        summary=f"{views.ranks_text(guilty)} did not enter {call_text(first)}, which the others reached at {at_text}; "
        f"{_last_call(graph.states[guilty[0]])[0]}",
        because=tuple(facts),
        fix=_FIX,
        alternatives=_others(),
        references=("pytorch/pytorch#54059",),
        next=(_STACK,),
    )


def _others() -> tuple[Possibility, ...]:
    return (
        Possibility(
            "blocked-call", "possible", "a call outside the job may not return; a dump does not show it", _STACK
        ),
        Possibility("slow-rank", "possible", "the rank may still be at work", "take the dump of that rank again later"),
        Possibility("exception", "possible", "the rank may have failed after its dump was written", _LOG),
    )


def _extra_call(guilty: tuple[int, ...], first: State, graph: WaitGraph, facts: tuple[str, ...]) -> Finding:
    """The waiting ones are the odd ones: their call is reserved for them."""
    wait = first.wait
    assert wait is not None
    at = views.where(wait.site[0]) if wait.site else None
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=tuple(
            views.rank_culprit(seen, f"waits in {call_text(graph.states[rank])}", at)
            for rank in guilty
            if (seen := graph.states[rank].seen) is not None
        ),
        summary=f"{views.ranks_text(guilty)} called {call_text(first)} at {_site_text(wait.site)}, "
        "which no other rank of the group calls there",
        because=facts,
        fix=(
            "move the call out of the branch, or take the branch on all ranks",
            "where only one rank should work, keep collectives out of it: model.module, not the DDP wrapper",
        ),
        references=("pytorch/pytorch#54059", "huggingface/accelerate#2690"),
        next=("see in the other ranks' stacks that they are past this line: `py-spy dump --pid PID`",),
    )


def _undecided(waiting: tuple[int, ...], absent: tuple[int, ...], first: State, unseen: tuple[int, ...]) -> Finding:
    """Who is at fault cannot be told: nobody is named."""
    blind = f"; of {views.ranks_text(unseen)} there is no dump" if unseen else ""
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=f"{views.ranks_text(waiting)} {views.verb(waiting, 'wait')} in {call_text(first)} at "
        f"{_site_text(first.wait.site if first.wait is not None else ())}, and {views.ranks_text(absent)} "
        f"did not enter it{blind}",
        because=(
            *_facts(waiting, first),
            "the dumps do not tell whether the call is one too many, or the others do not come to it",
        ),
        fix=_FIX,
        alternatives=_others(),
        next=(_STACK,),
    )


def _without_dump(unseen: tuple[int, ...], waiting: tuple[int, ...], first: State, graph: WaitGraph) -> Finding:
    """All dumps there are wait in one collective, and only ranks without a dump could have kept it from finishing."""
    wait = first.wait
    assert wait is not None
    members = members_of(wait.group, graph.states)
    named = 2 * len(unseen) < len(members) and set(waiting) | set(unseen) >= members
    text = views.ranks_text(unseen)
    begun = wait.seq > 1
    return Finding(
        outcome="hang",
        cause="collective-skipped" if begun else "rank-missing",
        certainty="likely" if named else "possible",
        culprits=tuple(
            Suspect(rank, None, None, "rank", None, f"no dump; {call_text(first)} waits for it") for rank in unseen
        )
        if named
        else (),
        summary=f"{views.ranks_text(waiting)} {views.verb(waiting, 'wait')} in {call_text(first)} at "
        f"{_site_text(wait.site)}; of {text} there is no dump"
        + (", and nobody else is absent" if named else ", so who is absent cannot be told"),
        because=(
            *_facts(waiting, first),
            f"no dump of {text} was given" + (": every other rank of the group has entered the call" if named else ""),
        ),
        fix=(
            f"look at {text}: has its process ended, does its log go on?",
            "let every rank write one: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=2000 in its environment",
        ),
        alternatives=(
            Possibility("rank-left", "possible", f"{text} may have ended, and so written no dump", _LOG),
            Possibility("killed", "possible", f"{text} may have been killed, as by the memory killer", _LOG),
            *_others()[:1],
        ),
        next=(f"find the dump or the log of {text}, and give it to rankscope diagnose with the others", _STACK),
    )


def softened(finding: Finding, graph: WaitGraph, evidence: Evidence) -> Finding:
    """Dumps are not all taken at one instant: only what cannot come loose by waiting is proven by them."""
    if finding.certainty != "proven" or finding.outcome != "hang":
        return finding
    if not any(recorded_only(seen) for seen in evidence.ranks) or _never_match(finding, graph):
        return finding
    return replace(finding, certainty="likely", next=finding.next or (_STACK,))


def _never_match(finding: Finding, graph: WaitGraph) -> bool:
    """All ranks that were seen entered the place, with operations that do not fit one another."""
    if finding.cause not in ("collective-mismatch", "collective-skipped"):
        return False
    for group in {state.wait.group for state in graph.states.values() if state.wait is not None and state.wait.group}:
        divergence = find_divergence(group, graph.states)
        if divergence is not None and _all_entered(divergence.sides):
            signatures = {side.event.signature() for side in divergence.sides if side.event is not None}
            if len(signatures) > 1:
                return True
    return False


def _all_entered(sides: tuple[Side, ...]) -> bool:
    return len(sides) > 1 and all(side.event is not None for side in sides)
