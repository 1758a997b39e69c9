"""Evidence → Verdict. The one entrance to the diagnosis."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.aborted import settle_abort
from rankscope.diagnosis.rules.deadlock import explain_deadlock, explain_paired_call
from rankscope.diagnosis.rules.diverged import explain_diverged
from rankscope.diagnosis.rules.endings import Endings, explain_endings, explain_exception, explain_left
from rankscope.diagnosis.rules.gpu import xid_fix, xid_lines
from rankscope.diagnosis.rules.log_facts import known_messages, signs_of_life
from rankscope.diagnosis.rules.logs import explain_logs, explain_mismatch
from rankscope.diagnosis.rules.memory_limit import with_memory_limit
from rankscope.diagnosis.rules.nodes import explain_lost_node
from rankscope.diagnosis.rules.numerics import as_alternative, ended_by_itself, explain_non_finite
from rankscope.diagnosis.rules.record_only import explain_absent, softened
from rankscope.diagnosis.rules.set_up import explain_group_creation, explain_missing
from rankscope.diagnosis.rules.stacks_only import explain_parted
from rankscope.diagnosis.rules.stages import with_stages
from rankscope.diagnosis.rules.standing import explain_standing
from rankscope.diagnosis.stragglers import as_finding, find_stragglers, phases_of, places_of
from rankscope.diagnosis.verdict import Certainty, Verdict
from rankscope.diagnosis.waiting import just_entered
from rankscope.diagnosis.waits import WaitGraph, build_graph
from rankscope.evidence.model import Evidence, Exit, RaisedException, RankEvidence

_RUNNING = frozenset({"request", "interrupt"})
"""Reasons to look at a job that still runs."""
_RUNNING_SHARE = 0.15


def diagnose(evidence: Evidence) -> Verdict:
    """Always a verdict; `ok` where nothing is wrong with what was seen."""
    offline = evidence.trigger.startswith("files")
    ended = (_as_ended(rank, by_log=offline) for rank in evidence.ranks)
    seen = replace(evidence, ranks=tuple(sorted(ended, key=lambda rank: rank.rank)))
    endings = explain_endings(seen)
    graph = build_graph(seen, failed=endings.victims)
    endings = settle_abort(endings, graph, seen)
    finding = _with_numerics(_find(seen, endings, graph), seen)
    slow = find_stragglers(phases_of(seen), least_share=_RUNNING_SHARE, places=places_of(seen.ranks))
    if finding is None and slow and evidence.trigger in _RUNNING:
        finding = as_finding(slow, seen)
    if finding is None:
        verdict = _fine(evidence)
    else:
        finding = softened(_with_driver_faults(finding, seen), graph, seen)
        verdict = _verdict(finding, evidence, graph, endings)
    verdict = replace(_with_logs(verdict, evidence), stragglers=slow)
    return with_memory_limit(with_stages(verdict, evidence), evidence)


def _with_numerics(finding: Finding | None, evidence: Evidence) -> Finding | None:
    """Bad numbers are the verdict on a job that goes on, or ended because of them; beside others they are noted."""
    bad = explain_non_finite(evidence) or explain_diverged(evidence)
    if bad is None:
        return finding
    if finding is None or finding.outcome == "slow" or ended_by_itself(evidence):
        return bad
    return replace(finding, alternatives=(*finding.alternatives, as_alternative(bad)))


def _with_driver_faults(finding: Finding, evidence: Evidence) -> Finding:
    """What the driver reports of a culprit's GPU explains an error of CUDA or NCCL that says no more."""
    guilty = {culprit.rank for culprit in finding.culprits}
    if finding.cause not in ("comm-error", "native-crash"):
        return finding
    for seen in evidence.ranks:
        if seen.rank in guilty and (lines := xid_lines(seen, evidence)):
            return replace(finding, because=(*finding.because, *lines), fix=xid_fix(seen, evidence))
    return finding


def _with_logs(verdict: Verdict, evidence: Evidence) -> Verdict:
    """What was read beside the verdict: signs of life, known messages, files that could not be used."""
    messages = known_messages(evidence)
    guilty = {culprit.rank for culprit in verdict.culprits}
    said = {message.rank for message in messages if message.role == "victim" and message.rank is not None}
    victims = sorted({*verdict.victims, *said} - guilty) if verdict.culprits else verdict.victims
    return replace(
        verdict,
        victims=tuple(rank for rank in victims if rank is not None),
        signs_of_life=signs_of_life(evidence),
        messages=messages,
        refused=evidence.refused,
        notes=(*verdict.notes, *(f"{what}: {why}" for what, why in evidence.missing.items())),
    )


def _as_ended(seen: RankEvidence, *, by_log: bool) -> RankEvidence:
    """A rank whose exception nobody caught is over, even while its interpreter still cleans up, or hangs in that. So is
    one whose log ends with a traceback."""
    uncaught = [error for error in seen.exceptions if error.source == "hook"]
    if by_log and not uncaught and not seen.stacks:
        uncaught = [error for error in seen.exceptions if error.thread == "MainThread"]
    if seen.exit is not None or not uncaught:
        return seen
    at = uncaught[-1].at or seen.started_at
    return replace(seen, exit=Exit(code=1, at=at, by_launcher=False))


def _as_logged(finding: Finding, evidence: Evidence) -> Finding:
    """Where nobody saw the rank end, and its log only ends with a traceback, that is what is said."""
    logged = {seen.rank for seen in evidence.ranks if _ends_with_traceback(seen)}
    if not logged & {culprit.rank for culprit in finding.culprits}:
        return finding
    reasons = []
    for reason in finding.because:
        rank = next((rank for rank in logged if reason == f"rank {rank} ended with code 1"), None)
        reasons.append(reason if rank is None else f"the log of rank {rank} ends with this traceback")
    certainty: Certainty = "likely" if finding.certainty == "proven" else finding.certainty
    return replace(finding, because=tuple(reasons), certainty=certainty)


def _ends_with_traceback(seen: RankEvidence) -> bool:
    return seen.pid == 0 and seen.log is not None and all(error.source == "output" for error in seen.exceptions)


def _find(evidence: Evidence, endings: Endings, graph: WaitGraph) -> Finding | None:
    mismatch = explain_mismatch(evidence) if evidence.trigger.startswith("files") else None
    if mismatch is not None:
        return mismatch
    lost = explain_lost_node(evidence, graph)
    if lost is not None:
        return lost
    if endings.origin is not None:
        return _as_logged(endings.origin, evidence)
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
    missing = explain_missing(graph, evidence) or explain_absent(graph, evidence)
    if missing is not None:
        return missing
    standing = _standing(evidence, graph, endings)
    if standing is None or (standing.certainty == "possible" and not standing.culprits):
        return (explain_logs(evidence) if evidence.trigger.startswith("files") else None) or standing
    return standing


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
        if not pending:
            continue
        others = [other for other in waiting if other is not seen and not _same_error(other, pending)]
        thread = views.newest_main_thread(seen)
        if thread is not None and any(code.around(frame).handling for frame in thread.frames if frame.user):
            continue  # the program has an answer to that exception; what it does now is the question
        if others:
            return explain_exception(seen, pending[-1], evidence)
    return None


def _same_error(seen: RankEvidence, errors: list[RaisedException]) -> bool:
    types = {error.type for error in errors}
    return any(error.source == "pending" and error.type in types for error in seen.exceptions)


def _standing(evidence: Evidence, graph: WaitGraph, endings: Endings) -> Finding | None:
    """Living ranks that wait for nobody while others wait for them."""
    roots = graph.roots()
    if not roots:
        if not graph.waiting():
            return _all_still(evidence)
        return explain_parted(graph, evidence) or _all_wait(evidence, graph)
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
            at = views.place(views.where(wait.site[0])) if wait.site else views.NO_LINE
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
        because=tuple(dict.fromkeys((*finding.because, *_hosts(finding, evidence)))),
        fix=finding.fix,
        alternatives=finding.alternatives,
        detected_after_s=_since(finding, evidence),
        world_size=evidence.world_size,
        started_at=evidence.started_at,
        ended_at=evidence.collected_at,
        exit_codes=exit_codes(evidence),
        references=finding.references,
        next=finding.next,
    )


def _hosts(finding: Finding, evidence: Evidence) -> tuple[str, ...]:
    """Where the culprits run, said only where there is more than one machine."""
    if len(evidence.nodes) < 2:
        return ()
    by_host: dict[str, list[int]] = {}
    for culprit in finding.culprits:
        if culprit.rank is not None and culprit.host is not None:
            by_host.setdefault(culprit.host, []).append(culprit.rank)
    return tuple(f"{views.ranks_text(ranks)} {views.verb(ranks, 'run')} on {host}" for host, ranks in by_host.items())


def _since(finding: Finding, evidence: Evidence) -> float | None:
    """From the last progress of the culprits (of anybody, where there is none) to the collection."""
    if finding.since is not None:
        return max(0.0, evidence.collected_at - finding.since)
    guilty = {culprit.rank for culprit in finding.culprits}
    times: list[float] = []
    if evidence.trigger.startswith("files"):
        return None  # a file may be read long after the fact
    for seen in evidence.ranks:
        if guilty and seen.rank not in guilty:
            continue
        if seen.exit is not None:
            times.append(seen.exit.at)
        elif seen.progress is not None:
            times.append(seen.progress.changed_at)
    if not times:
        # Of a lost node only its last word is known.
        return max((node.silent_for_s for node in evidence.nodes if node.silent_for_s is not None), default=None)
    return max(0.0, evidence.collected_at - max(times))


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
