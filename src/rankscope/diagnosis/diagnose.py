"""Evidence → Ruling. The one entrance to the diagnosis."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.compose import compose, fine
from rankscope.diagnosis.finding import Finding, Ruling
from rankscope.diagnosis.rules.crashes.aborted import settle_abort
from rankscope.diagnosis.rules.crashes.endings import Endings, explain_endings, explain_exception, explain_left
from rankscope.diagnosis.rules.crashes.memory_limit import with_memory_limit
from rankscope.diagnosis.rules.divergence.deadlock import explain_deadlock, explain_paired_call
from rankscope.diagnosis.rules.divergence.ended_apart import explain_skipped_before_end
from rankscope.diagnosis.rules.numbers.non_finite import as_alternative, ended_by_itself, explain_non_finite
from rankscope.diagnosis.rules.numbers.replicas import explain_diverged
from rankscope.diagnosis.rules.numbers.stragglers import as_finding, find_stragglers, phases_of, places_of
from rankscope.diagnosis.rules.offline.fingerprints import explain_compared, explain_mismatch
from rankscope.diagnosis.rules.offline.log_facts import known_messages, signs_of_life
from rankscope.diagnosis.rules.offline.logs import explain_logs
from rankscope.diagnosis.rules.offline.record_only import explain_absent, softened
from rankscope.diagnosis.rules.setup.nodes import explain_lost_node
from rankscope.diagnosis.rules.setup.set_up import explain_group_creation, explain_missing
from rankscope.diagnosis.rules.standing.gpu import xid_fix, xid_lines
from rankscope.diagnosis.rules.standing.roots import explain_broken, explain_roots, merged
from rankscope.diagnosis.rules.standing.stages import with_stages
from rankscope.diagnosis.verdict import Certainty
from rankscope.diagnosis.waits import WaitGraph, build_graph
from rankscope.evidence.model import Evidence, Exit, RaisedException, RankEvidence

_RUNNING = frozenset({"request", "interrupt"})
"""Reasons to look at a job that still runs."""
_RUNNING_SHARE = 0.15


def diagnose(evidence: Evidence) -> Ruling:
    """Always a ruling; `ok` where nothing is wrong with what was seen."""
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
        ruling = fine(evidence)
    else:
        finding = softened(_with_driver_faults(finding, seen), graph, seen)
        ruling = compose(finding, evidence, graph, endings)
    ruling = replace(_with_logs(ruling, evidence), stragglers=slow)
    return with_memory_limit(with_stages(ruling, evidence), evidence)


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


def _with_logs(ruling: Ruling, evidence: Evidence) -> Ruling:
    """What was read beside the verdict: signs of life, known messages, files that could not be used."""
    messages = known_messages(evidence)
    guilty = {culprit.rank for culprit in ruling.culprits}
    said = {message.rank for message in messages if message.role == "victim" and message.rank is not None}
    victims = sorted({*ruling.victims, *said} - guilty) if ruling.culprits else ruling.victims
    return replace(
        ruling,
        victims=tuple(rank for rank in victims if rank is not None),
        signs_of_life=signs_of_life(evidence),
        messages=messages,
        refused=evidence.refused,
        notes=(*ruling.notes, *(f"{what}: {why}" for what, why in evidence.missing.items())),
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
        compared = explain_compared(evidence) if endings.origin.cause == "collective-mismatch" else None
        return compared or _as_logged(endings.origin, evidence)
    hidden = _hidden_exception(evidence, graph)
    if hidden is not None:
        return hidden
    left = [seen for seen in evidence.ranks if seen.rank in endings.left and graph.waiters_of(seen.rank)]
    if left:
        paired = explain_paired_call(graph, evidence, "proven")
        if paired is not None:
            return paired
        passed = [by for seen in left if (by := explain_skipped_before_end(seen, evidence, graph)) is not None]
        if len(passed) == 1:
            return passed[0]
        begun = min(seen.exit.at for seen in left if seen.exit is not None)
        # The launcher looks at its processes one after another: nearly equal times have no order.
        together = sorted((s for s in left if s.exit is not None and s.exit.at <= begun + 1.0), key=lambda s: s.rank)
        found = [explain_left(seen, evidence, graph.waiters_of(seen.rank)) for seen in together]
        return merged(found[0], [finding for finding in found[1:] if finding.cause == found[0].cause])
    gone = _left_unseen(evidence, endings, graph)
    if gone is not None:
        return gone
    groups = explain_group_creation(graph)
    if groups is not None:
        return groups
    if graph.deadlocked:
        return explain_deadlock(graph, evidence)
    missing = explain_missing(graph, evidence) or explain_absent(graph, evidence)
    if missing is not None:
        return missing
    standing = explain_roots(evidence, graph, endings)
    if standing is None or (standing.certainty == "possible" and not standing.culprits):
        standing = (explain_logs(evidence) if evidence.trigger.startswith("files") else None) or standing
    # A job in which a rank failed is never well.
    return standing or (explain_broken(evidence, endings) if endings.victims else None)


def _left_unseen(evidence: Evidence, endings: Endings, graph: WaitGraph) -> Finding | None:
    """Ranks lost their connection in something that was not recorded, such as a compiled graph, after one had ended."""
    left = [seen for seen in evidence.ranks if seen.rank in endings.left]
    if len(left) != 1 or not endings.victims or any(graph.states[rank].kind == "waiting" for rank in endings.victims):
        return None
    finding = explain_left(left[0], evidence, endings.victims)
    return replace(finding, certainty="likely") if finding.certainty == "proven" else finding


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
