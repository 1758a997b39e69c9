"""Living ranks that wait for nobody while others wait for them; and jobs in which nothing tells who waits for whom."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.device import stands_in_device_wait
from rankscope.diagnosis.facts.roots import (
    AllWait,
    AwaitsUnseen,
    BeyondTimeLimit,
    InCall,
    NoEvidence,
    NoRecord,
    NothingMoved,
    SoDo,
    TimedOut,
)
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rank_wait import just_entered
from rankscope.diagnosis.rules.crashes.endings import Endings
from rankscope.diagnosis.rules.crashes.known_errors import recognise_lines
from rankscope.diagnosis.rules.divergence.paired import explain_paired_call
from rankscope.diagnosis.rules.offline.stacks_only import explain_parted
from rankscope.diagnosis.rules.setup.store_keys import awaited_key, explain_key_wait
from rankscope.diagnosis.rules.standing.gpu import explain_held_up
from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import State, WaitGraph, behind_its_own_work
from rankscope.evidence.model import Evidence, RankEvidence


def explain_roots(evidence: Evidence, graph: WaitGraph, endings: Endings) -> Finding | None:
    """Living ranks that wait for nobody while others wait for them."""
    roots = graph.roots()
    if not roots:
        if not graph.waiting():
            return _all_still(evidence)
        return explain_parted(graph, evidence) or _all_wait(evidence, graph)
    found = [finding for rank in roots for finding in _of_root(graph.states[rank], evidence, graph)]
    unknown = [graph.states[rank] for rank in roots if graph.states[rank].kind == "unknown"]
    if any(state.seen is not None and _goes_on(state.seen) for state in unknown):
        return None  # it goes on, and may come to what the others wait in at any moment
    if unknown and all(state.seen is not None and stands_in_device_wait(state.seen) for state in unknown):
        return None  # the GPUs of some wait for somebody: who that is, their stacks do not show
    if unknown:
        return _blind(unknown, graph)
    if not found:  # they wait too, for nobody knows whom
        return explain_parted(graph, evidence)
    stuck = sorted([finding for finding in found if finding.outcome == "hang"] or found, key=_weight, reverse=True)
    first = stuck[0]
    unproven = first.outcome == "hang" and first.certainty != "proven"
    paired = explain_paired_call(graph, evidence, first.certainty) if unproven else None
    if paired is not None:
        return paired
    late = tuple(endings.victims) or tuple(seen.rank for seen in evidence.ranks if _gave_up(seen))
    if late and first.outcome == "slow":
        return _timed_out(first, late)
    alike = [each for each in stuck[1:] if (each.cause, each.certainty) == (first.cause, first.certainty)]
    return merged(first, alike)


def _of_root(state: State, evidence: Evidence, graph: WaitGraph) -> list[Finding]:
    if state.seen is None or just_entered(state.seen, evidence):
        return []
    waiters = graph.waiters_of(state.rank)
    found = []
    if (key := awaited_key(state)) is not None:
        found.append(explain_key_wait(state.seen, key, evidence, waiters))
    if state.wait is not None and behind_its_own_work(state.wait):
        found.append(explain_held_up(state.seen, state.wait, evidence, waiters))
    if state.kind == "elsewhere":
        found.append(explain_standing(state.seen, evidence, waiters))
    return found


def _weight(finding: Finding) -> tuple[bool, int]:
    """What is more certain comes first, then what says more."""
    return finding.certainty != "possible", CAUSES[finding.cause].special


def _all_wait(evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """Every living rank waits, and what is known does not say for whom: said after the threshold, without blame."""
    living = [seen for seen in evidence.ranks if seen.exit is None]
    limit = evidence.stall_after_s
    still = [seen.still_for_s for seen in living if seen.still_for_s is not None]
    if limit is None or len(still) < len(living) or min(still, default=0.0) < limit:
        return None
    if set(graph.waiting()) != {seen.rank for seen in living}:
        return None
    places: dict[tuple[str, Where | None], list[int]] = {}
    for rank in graph.waiting():
        wait = graph.states[rank].wait
        if wait is not None:
            at = views.where(wait.site[0]) if wait.site else None
            places.setdefault((wait.op, at), []).append(rank)
    calls = tuple(InCall(tuple(ranks), op, at) for (op, at), ranks in places.items())
    return Finding(
        outcome="hang",
        cause="collective-skipped" if len(places) > 1 else "comm-error",
        certainty="possible",
        culprits=(),
        summary=AllWait(calls),
        because=(NothingMoved(min(still)), *calls),
        fix=(Advice("start-with-probe"),)
        if any(seen.progress is None for seen in living)
        else (Advice("network-between-hosts"),),
    )


def merged(first: Finding, more: list[Finding]) -> Finding:
    """One finding about several ranks that stand alike."""
    if not more:
        return first
    culprits = first.culprits + tuple(culprit for finding in more for culprit in finding.culprits)
    ranks = tuple(culprit.rank for culprit in culprits if culprit.rank is not None)
    return replace(first, culprits=culprits, summary=SoDo(first.summary, ranks[1:]))


def _all_still(evidence: Evidence) -> Finding | None:
    """Nobody waits for anybody. Ranks that all stand in a call to the outside are stuck there; sleepers are idle."""
    living = [seen for seen in evidence.ranks if seen.exit is None]
    if not any(seen.stacks for seen in living):
        return None  # nobody is left, or nothing could be read of them
    found = [explain_standing(seen, evidence, ()) for seen in living]
    stuck = [
        finding
        for finding in found
        if finding.outcome == "hang"
        and finding.certainty != "possible"
        and (finding.cause == "lock-wait" or not _asleep(finding, living))
    ]
    if len(stuck) < len(living):
        return None
    finding = merged(stuck[0], [finding for finding in stuck[1:] if finding.cause == stuck[0].cause])
    # Nobody is known to wait for them: what no special cause explains may be meant.
    return replace(finding, certainty="possible") if finding.cause == "stalled" else finding


def _asleep(finding: Finding, living: list[RankEvidence]) -> bool:
    ranks = {culprit.rank for culprit in finding.culprits}
    return any(
        seen.rank in ranks
        and seen.processes
        and (call := seen.processes[-1].syscall) is not None
        and call.name in ("nanosleep", "clock_nanosleep", "pause")
        for seen in living
    )


def _gave_up(seen: RankEvidence) -> bool:
    """Torch's watchdog in this rank, which still lives, has given its collective up."""
    known = recognise_lines(seen.error_tail, ("victim",)) if seen.exit is None else None
    return known is not None and known.name == "collective-timeout"


def _timed_out(finding: Finding, victims: tuple[int, ...]) -> Finding:
    """The awaited rank was at work; the others' own time limit ended the job."""
    return replace(
        finding,
        outcome="hang",
        summary=BeyondTimeLimit(finding.summary, victims),
        because=(*finding.because, TimedOut(victims)),
        fix=(Advice("raise-time-limit"), Advice("work-before-group"), *finding.fix[:1]),
        references=("hiyouga/LlamaFactory#360",),
    )


def _goes_on(seen: RankEvidence) -> bool:
    return views.same_stack(seen) is False or views.works_through(seen)


def _blind(unknown: list[State], graph: WaitGraph) -> Finding:
    ranks = tuple(state.rank for state in unknown)
    unseen = tuple(state.rank for state in unknown if state.seen is None)
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="possible",
        culprits=(),
        summary=AwaitsUnseen(graph.waiting(), ranks, unseen=bool(unseen)),
        because=(NoEvidence(unseen),) if unseen else (NoRecord(ranks),),
        fix=(Advice("look-at-missing-host"),) if unseen else (Advice("start-with-rankscope"),),
    )
