"""Evidence → Verdict. The one entrance to the diagnosis."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.deadlock import explain_deadlock, explain_paired_call
from rankscope.diagnosis.rules.endings import Endings, explain_endings, explain_exception, explain_left
from rankscope.diagnosis.rules.numerics import as_alternative, ended_by_itself, explain_non_finite
from rankscope.diagnosis.rules.set_up import explain_group_creation, explain_missing
from rankscope.diagnosis.rules.standing import explain_standing
from rankscope.diagnosis.stragglers import as_finding, find_stragglers, phases_of, places_of
from rankscope.diagnosis.verdict import Verdict
from rankscope.diagnosis.waiting import just_entered
from rankscope.diagnosis.waits import WaitGraph, build_graph
from rankscope.evidence.model import Evidence, Exit, RaisedException, RankEvidence

_RUNNING = frozenset({"request", "interrupt"})
"""Reasons to look at a job that still runs."""
_RUNNING_SHARE = 0.15


def diagnose(evidence: Evidence) -> Verdict:
    """Always a verdict; `ok` where nothing is wrong with what was seen."""
    seen = replace(evidence, ranks=tuple(sorted(map(_as_ended, evidence.ranks), key=lambda rank: rank.rank)))
    endings = explain_endings(seen)
    graph = build_graph(seen, failed=endings.victims)
    finding = _with_numerics(_find(seen, endings, graph), seen)
    slow = find_stragglers(phases_of(seen), least_share=_RUNNING_SHARE, places=places_of(seen.ranks))
    if finding is None and slow and evidence.trigger in _RUNNING:
        finding = as_finding(slow, seen)
    verdict = _fine(evidence) if finding is None else _verdict(finding, evidence, graph, endings)
    return replace(verdict, stragglers=slow)


def _with_numerics(finding: Finding | None, evidence: Evidence) -> Finding | None:
    """A non-finite value is the verdict on a job that goes on or ended because of it; beside others it is noted."""
    bad = explain_non_finite(evidence)
    if bad is None:
        return finding
    if finding is None or finding.outcome == "slow" or ended_by_itself(evidence):
        return bad
    return replace(finding, alternatives=(*finding.alternatives, as_alternative(bad)))


def _as_ended(seen: RankEvidence) -> RankEvidence:
    """A rank whose exception nobody caught is over, even while its interpreter still cleans up, or hangs in that."""
    uncaught = [error for error in seen.exceptions if error.source == "hook"]
    if seen.exit is not None or not uncaught:
        return seen
    return replace(seen, exit=Exit(code=1, at=uncaught[-1].at or seen.started_at, by_launcher=False))


def _find(evidence: Evidence, endings: Endings, graph: WaitGraph) -> Finding | None:
    if endings.origin is not None:
        return endings.origin
    hidden = _hidden_exception(evidence, graph)
    if hidden is not None:
        return hidden
    left = [seen for seen in evidence.ranks if seen.rank in endings.left and graph.waiters_of(seen.rank)]
    if left:
        paired = explain_paired_call(graph, evidence, "proven")
        if paired is not None:
            return paired
        begun = min(seen.exit.at for seen in left if seen.exit is not None)
        # The launcher looks at its processes one after another: nearly equal times have no order.
        together = sorted((s for s in left if s.exit is not None and s.exit.at <= begun + 1.0), key=lambda s: s.rank)
        found = [explain_left(seen, evidence, graph.waiters_of(seen.rank)) for seen in together]
        return _merged(found[0], [finding for finding in found[1:] if finding.cause == found[0].cause])
    groups = explain_group_creation(graph)
    if groups is not None:
        return groups
    if graph.deadlocked:
        return explain_deadlock(graph, evidence)
    missing = explain_missing(graph, evidence)
    if missing is not None:
        return missing
    return _standing(evidence, graph, endings)


def _hidden_exception(evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """A rank that handles an exception and waits for others meanwhile, as in `finally:`, hides what went wrong."""
    waiting = [seen for seen in evidence.ranks if graph.states[seen.rank].kind == "waiting" and seen.exit is None]
    code = CodeReader(evidence)
    for seen in waiting:
        pending = [
            error
            for error in seen.exceptions
            if error.source == "pending" and error.thread == "MainThread" and any(frame.user for frame in error.frames)
        ]
        others = [other for other in waiting if other is not seen and not _same_error(other, pending)]
        thread = views.newest_main_thread(seen)
        if thread is not None and any(code.around(frame).handling for frame in thread.frames if frame.user):
            continue  # the program has an answer to that exception; what it does now is the question
        if pending and others:
            return explain_exception(seen, pending[-1], evidence)
    return None


def _same_error(seen: RankEvidence, errors: list[RaisedException]) -> bool:
    types = {error.type for error in errors}
    return any(error.source == "pending" and error.type in types for error in seen.exceptions)


def _standing(evidence: Evidence, graph: WaitGraph, endings: Endings) -> Finding | None:
    """Living ranks that wait for nobody while others wait for them."""
    roots = graph.roots()
    if not roots:
        return _all_wait(evidence, graph) if graph.waiting() else _all_still(evidence)
    found = []
    for rank in roots:
        state = graph.states[rank]
        if state.seen is None or state.kind != "elsewhere" or just_entered(state.seen, evidence):
            continue
        found.append(explain_standing(state.seen, evidence, graph.waiters_of(rank)))
    blind = [rank for rank in roots if graph.states[rank].kind == "unknown"]
    if blind:
        return _blind(blind, graph)
    if not found:
        return _broken(evidence, endings) if endings.victims else None
    stuck = [finding for finding in found if finding.outcome == "hang"] or found
    first = stuck[0]
    paired = explain_paired_call(graph, evidence, first.certainty) if first.outcome == "hang" else None
    if paired is not None:
        return paired
    if endings.victims and first.outcome == "slow":
        return _timed_out(first, endings)
    return _merged(first, [finding for finding in stuck[1:] if finding.cause == first.cause])


def _all_wait(evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """Every living rank waits, and what is known does not say for whom: said after the threshold, without blame."""
    living = [seen for seen in evidence.ranks if seen.exit is None]
    limit = evidence.stall_after_s
    still = [seen.still_for_s for seen in living if seen.still_for_s is not None]
    if limit is None or len(still) < len(living) or min(still, default=0.0) < limit:
        return None
    if set(graph.waiting()) != {seen.rank for seen in living}:
        return None
    places: dict[str, list[int]] = {}
    for rank in graph.waiting():
        wait = graph.states[rank].wait
        if wait is not None:
            at = views.place(views.where(wait.site[0])) if wait.site else "torch's own code"
            places.setdefault(f"{wait.op} at {at}", []).append(rank)
    parts = [f"{views.ranks_text(ranks)} {views.verb(ranks, 'wait')} in {call}" for call, ranks in places.items()]
    return Finding(
        outcome="hang",
        cause="collective-skipped" if len(places) > 1 else "comm-error",
        certainty="possible",
        culprits=(),
        summary="all ranks wait for each other: " + "; ".join(parts),
        because=(f"nothing has moved for {min(still):.0f} s", *parts),
        fix=("start the job with the probe: the sequence of collectives then shows where the ranks parted",)
        if any(seen.progress is None for seen in living)
        else ("look at the network between the hosts of these ranks",),
    )


def _merged(first: Finding, more: list[Finding]) -> Finding:
    if not more:
        return first
    culprits = first.culprits + tuple(culprit for finding in more for culprit in finding.culprits)
    ranks = [culprit.rank for culprit in culprits if culprit.rank is not None]
    return Finding(
        outcome=first.outcome,
        cause=first.cause,
        certainty=first.certainty,
        culprits=culprits,
        summary=f"{first.summary}; so does {views.ranks_text(ranks[1:])}",
        because=first.because,
        fix=first.fix,
        alternatives=first.alternatives,
        references=first.references,
    )


def _all_still(evidence: Evidence) -> Finding | None:
    """Nobody waits for anybody. Ranks that all stand in a call to the outside are stuck there; sleepers are idle."""
    living = [seen for seen in evidence.ranks if seen.exit is None]
    if not living:
        return None
    found = [explain_standing(seen, evidence, ()) for seen in living]
    stuck = [
        finding
        for finding in found
        if finding.outcome == "hang"
        and finding.certainty == "likely"
        and (finding.cause == "lock-wait" or not _asleep(finding, living))
    ]
    if len(stuck) < len(living):
        return None
    return _merged(stuck[0], [finding for finding in stuck[1:] if finding.cause == stuck[0].cause])


def _asleep(finding: Finding, living: list[RankEvidence]) -> bool:
    ranks = {culprit.rank for culprit in finding.culprits}
    return any(
        seen.rank in ranks
        and seen.processes
        and (call := seen.processes[-1].syscall) is not None
        and call.name in ("nanosleep", "clock_nanosleep", "pause")
        for seen in living
    )


def _timed_out(finding: Finding, endings: Endings) -> Finding:
    """The awaited rank was at work; the others' own time limit ended the job."""
    return Finding(
        outcome="hang",
        cause=finding.cause,
        certainty=finding.certainty,
        culprits=finding.culprits,
        summary=f"{finding.summary}, longer than the time limit of the collective in which "
        f"{views.ranks_text(endings.victims)} waited",
        because=(
            *finding.because,
            f"{views.ranks_text(endings.victims)} ended with a time-out in a collective",
        ),
        fix=(
            "raise the limit: init_process_group(timeout=timedelta(...)) above the longest one-rank phase",
            "or do the work before the process group exists, or on all ranks",
            *finding.fix[:1],
        ),
        alternatives=finding.alternatives,
        references=("hiyouga/LlamaFactory#360",),
    )


def _blind(ranks: list[int], graph: WaitGraph) -> Finding:
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="possible",
        culprits=(),
        summary=f"{views.ranks_text(graph.waiting())} wait for {views.ranks_text(ranks)}, "
        "of which nothing could be seen from here",
        because=(f"no evidence of {views.ranks_text(ranks)}",),
        fix=("look at the host of the missing ranks: is the process alive, does its log go on?",),
    )


def _broken(evidence: Evidence, endings: Endings) -> Finding:
    """Every failure is a consequence, and its origin was not seen."""
    first = min(
        (seen for seen in evidence.ranks if seen.rank in endings.victims and seen.exit is not None),
        key=lambda seen: seen.exit.at if seen.exit is not None else 0.0,
    )
    message = first.exceptions[-1].message.splitlines()[0] if first.exceptions and first.exceptions[-1].message else ""
    return Finding(
        outcome="crash",
        cause="comm-error",
        certainty="possible",
        culprits=(),
        summary=f"{views.ranks_text(endings.victims)} lost the connection to other ranks, "
        "and what began it was not seen",
        because=(f"rank {first.rank} ended first: {message}",) if message else (),
        fix=("look at the ranks on other hosts, and at the network between them",),
    )


def _verdict(finding: Finding, evidence: Evidence, graph: WaitGraph, endings: Endings) -> Verdict:
    guilty = {culprit.rank for culprit in finding.culprits}
    victims = tuple(sorted((set(graph.waiting()) | set(endings.victims)) - guilty))
    victims = tuple(rank for rank in victims if graph.states[rank].seen is not None)
    if finding.victims is not None:
        victims = finding.victims
    headline = finding.summary
    if victims and finding.culprits and finding.victims is None:
        them = "it" if len(finding.culprits) == 1 else "them"
        verb = (
            f"failed with {them}"
            if finding.outcome == "crash" and endings.victims
            else f"{views.verb(victims, 'wait')} for {them}"
        )
        headline = f"{headline}; {views.ranks_text(victims)} {verb}"
    return Verdict(
        schema=1,
        outcome=finding.outcome,
        cause=finding.cause,
        certainty=finding.certainty,
        culprits=finding.culprits,
        victims=victims,
        headline=headline + ".",
        because=tuple(dict.fromkeys(finding.because)),
        fix=finding.fix,
        alternatives=finding.alternatives,
        detected_after_s=_since(finding, evidence),
        world_size=evidence.world_size,
        started_at=evidence.started_at,
        ended_at=evidence.collected_at,
        exit_codes=exit_codes(evidence),
        references=finding.references,
    )


def _since(finding: Finding, evidence: Evidence) -> float | None:
    """From the last progress of the culprits (of anybody, where there is none) to the collection."""
    if finding.since is not None:
        return max(0.0, evidence.collected_at - finding.since)
    guilty = {culprit.rank for culprit in finding.culprits}
    times = []
    for seen in evidence.ranks:
        if guilty and seen.rank not in guilty:
            continue
        if seen.exit is not None:
            times.append(seen.exit.at)
        elif seen.progress is not None:
            times.append(seen.progress.changed_at)
    return max(0.0, evidence.collected_at - max(times)) if times else None


def exit_codes(evidence: Evidence) -> dict[int, int | None]:
    return {seen.rank: seen.exit.code if seen.exit is not None else None for seen in evidence.ranks}


def _fine(evidence: Evidence) -> Verdict:
    return Verdict(
        schema=1,
        outcome="ok",
        cause=None,
        certainty="proven",
        culprits=(),
        victims=(),
        headline=f"all {evidence.world_size} ranks are well.",
        because=(),
        fix=(),
        world_size=evidence.world_size,
        started_at=evidence.started_at,
        ended_at=evidence.collected_at,
        exit_codes=exit_codes(evidence),
    )
