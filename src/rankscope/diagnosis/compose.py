"""A finding becomes the verdict on a job: victims, times, exit codes and the sentence that a person reads first."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.causes import CAUSES, Cause
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import NobodyStandsOut
from rankscope.diagnosis.facts.nothing_found import AllWell, RunsOn
from rankscope.diagnosis.finding import Finding, Ruling, Suspect, Way
from rankscope.diagnosis.nothing_found import as_seen
from rankscope.diagnosis.rules.crashes.endings import Endings
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence


def compose(finding: Finding, evidence: Evidence, graph: WaitGraph, endings: Endings) -> Ruling:
    cause = CAUSES[finding.cause]
    finding = not_everybody(finding, _concerned(finding, evidence, graph, endings))
    guilty = {culprit.rank for culprit in finding.culprits}
    victims = tuple(sorted((set(graph.waiting()) | set(endings.victims)) - guilty))
    victims = tuple(rank for rank in victims if graph.states[rank].seen is not None)
    return Ruling(
        outcome=finding.outcome,
        cause=finding.cause,
        certainty=finding.certainty,
        summary=finding.summary,
        culprits=finding.culprits,
        victims=victims if finding.victims is None else finding.victims,
        victims_failed=finding.outcome == "crash" and bool(endings.victims),
        victims_told=finding.victims is not None,
        because=tuple(dict.fromkeys((*finding.because, *_hosts(finding, evidence)))),
        fix=finding.fix or tuple(map(Advice, cause.fix)),
        alternatives=finding.alternatives,
        detected_after_s=_since(finding, evidence),
        world_size=evidence.world_size,
        started_at=evidence.started_at,
        ended_at=evidence.collected_at,
        exit_codes=exit_codes(evidence),
        references=finding.references,
        next=finding.next or _confirming(finding, cause),
        ways=finding.ways,
    )


def _concerned(finding: Finding, evidence: Evidence, graph: WaitGraph, endings: Endings) -> set[int]:
    """Who waits or suffers; all ranks where nobody waits to the end, or files do not tell who did."""
    if finding.outcome == "slow" or evidence.trigger.startswith("files"):
        return {seen.rank for seen in evidence.ranks}
    return set(graph.waiting()) | set(endings.victims) if finding.victims is None else set(finding.victims)


def not_everybody(finding: Finding, concerned: Collection[int]) -> Finding:
    """To name all whom a divergence concerns is to name nobody: then their ways are shown, and no one is blamed."""
    guilty = {culprit.rank for culprit in finding.culprits if culprit.rank is not None}
    if not CAUSES[finding.cause].apart or len(guilty) < 2 or set(concerned) - guilty:
        return finding
    ways: dict[Where | None, list[Suspect]] = {}
    for culprit in finding.culprits:
        ways.setdefault(culprit.where, []).append(culprit)
    told = tuple(
        Way(tuple(sorted(each.rank for each in alike if each.rank is not None)), where, alike[0].doing)
        for where, alike in ways.items()
    )
    summary = NobodyStandsOut(tuple(sorted(guilty)))
    return replace(finding, culprits=(), victims=(), ways=finding.ways or told, summary=summary)


def _confirming(finding: Finding, cause: Cause) -> tuple[Advice, ...]:
    return (Advice(cause.confirm),) if cause.confirm and finding.certainty != "proven" else ()


def _hosts(finding: Finding, evidence: Evidence) -> tuple[Fact, ...]:
    """Where the culprits run, said only where there is more than one machine."""
    if len(evidence.nodes) < 2:
        return ()
    by_host: dict[str, list[int]] = {}
    for culprit in finding.culprits:
        if culprit.rank is not None and culprit.host is not None:
            by_host.setdefault(culprit.host, []).append(culprit.rank)
    return tuple(RunsOn(tuple(ranks), host) for host, ranks in by_host.items())


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


def fine(evidence: Evidence) -> Ruling:
    """No rule finds anything wrong. Of a run that is watched that is enough; files must show that the job was well."""
    ruling = Ruling(
        outcome="ok",
        cause=None,
        certainty="proven",
        summary=AllWell(evidence.world_size),
        world_size=evidence.world_size,
        started_at=evidence.started_at,
        ended_at=evidence.collected_at,
        exit_codes=exit_codes(evidence),
    )
    return as_seen(ruling, evidence) if evidence.trigger.startswith("files") else ruling
