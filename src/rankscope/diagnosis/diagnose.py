"""Evidence → Ruling, the entrance to the diagnosis: a case is prepared, all rules are asked, the arbiter decides."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.arbiter import decide
from rankscope.diagnosis.case import Case, prepare
from rankscope.diagnosis.compose import compose, fine
from rankscope.diagnosis.facts.nothing_found import CollectorNote
from rankscope.diagnosis.finding import Finding, Ruling
from rankscope.diagnosis.registry import RULES
from rankscope.diagnosis.rules.crashes import rules as crashes
from rankscope.diagnosis.rules.crashes.host_memory import with_host_memory
from rankscope.diagnosis.rules.crashes.memory_limit import with_memory_limit
from rankscope.diagnosis.rules.divergence import rules as divergence
from rankscope.diagnosis.rules.numbers import rules as numbers
from rankscope.diagnosis.rules.offline import rules as offline
from rankscope.diagnosis.rules.offline.log_facts import known_messages, signs_of_life
from rankscope.diagnosis.rules.offline.record_only import softened
from rankscope.diagnosis.rules.setup import rules as setup
from rankscope.diagnosis.rules.setup.variables import with_set_up
from rankscope.diagnosis.rules.standing import launched
from rankscope.diagnosis.rules.standing import rules as standing
from rankscope.diagnosis.rules.standing.gpu import xid_fix, xid_lines
from rankscope.diagnosis.rules.standing.stages import with_stages
from rankscope.evidence.model import Evidence

SUBJECTS = (crashes, divergence, launched, numbers, offline, setup, standing)
"""Importing them has registered their rules."""


def diagnose(evidence: Evidence) -> Ruling:
    """Always a ruling; `ok` where nothing is wrong with what was seen."""
    case = prepare(evidence)
    finding = decide([found for rule in RULES if (found := rule.ask(case)) is not None], case.graph)
    if finding is None:
        ruling = fine(evidence)
    else:
        finding = softened(_with_driver_faults(finding, case), case.graph, case.evidence)
        ruling = compose(finding, evidence, case.graph, case.endings)
    ruling = replace(_with_logs(ruling, evidence), stragglers=numbers.stragglers_of(case.evidence))
    ruling = with_set_up(with_stages(ruling, evidence), evidence)
    return with_memory_limit(with_host_memory(ruling, evidence), evidence)


def _with_driver_faults(finding: Finding, case: Case) -> Finding:
    """What the driver reports of a culprit's GPU explains an error of CUDA or NCCL that says no more."""
    guilty = {culprit.rank for culprit in finding.culprits}
    if finding.cause not in ("comm-error", "native-crash"):
        return finding
    for seen in case.evidence.ranks:
        if seen.rank in guilty and (lines := xid_lines(seen, case.evidence)):
            return replace(finding, because=(*finding.because, *lines), fix=xid_fix(seen, case.evidence))
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
        notes=(*ruling.notes, *(CollectorNote(what, why) for what, why in evidence.missing.items())),
    )
