"""One arbiter decides among everything that the rules found; their order means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from msgspec.structs import replace

from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.wait_graph import WaitGraph

_CERTAINTY = ("proven", "likely", "possible")
_ENDING = {"crash": 0, "hang": 0, "corrupt": 1, "nan": 1, "slow": 2}
"""What ends a job comes before what it lives with."""
_SAME_MOMENT_S = 0.5
"""Clocks and looks are not finer than that."""
_MOST_ALTERNATIVES = 3


def decide(findings: Sequence[Finding], graph: WaitGraph) -> Finding | None:
    """By certainty, then by who began it (a rank that others wait for before one that waits, earlier before later),
    then the special cause before the general one. What else is likely becomes an alternative."""
    if not findings:
        return None

    def compare(one: Finding, other: Finding) -> int:
        return _compare(one, other, graph)

    ordered = sorted(findings, key=cmp_to_key(compare))
    first, rest = ordered[0], ordered[1:]
    known = {first.cause, *(each.cause for each in first.alternatives)}
    more = []
    for each in rest:
        if each.cause not in known and each.certainty != "possible":
            known.add(each.cause)
            more.append(Possibility(each.cause, each.certainty, each.summary))
    return replace(first, alternatives=(*first.alternatives, *more[:_MOST_ALTERNATIVES]))


def _compare(one: Finding, other: Finding, graph: WaitGraph) -> int:
    """Below zero where `one` goes first."""
    for mine, theirs in zip(_standing(one), _standing(other), strict=True):
        if mine != theirs:
            return -1 if mine < theirs else 1
    if (leaf := _waits_for(one, other, graph)) != _waits_for(other, one, graph):
        return 1 if leaf else -1
    sooner = _sooner(one, other)
    if abs(sooner) > _SAME_MOMENT_S:
        return -1 if sooner < 0 else 1
    special = CAUSES[other.cause].special - CAUSES[one.cause].special
    return special or (sooner > 0) - (sooner < 0) or (one.cause > other.cause) - (one.cause < other.cause)


def _sooner(one: Finding, other: Finding) -> float:
    """Seconds by which `one` began after `other`; 0 where that is not known of both."""
    times = [each.began if each.began is not None else each.since for each in (one, other)]
    return times[0] - times[1] if times[0] is not None and times[1] is not None else 0.0


def _standing(finding: Finding) -> tuple[bool, int, int, bool]:
    """A mere possibility comes last; then what ended the job, how certain it is, and whether it names anybody."""
    certainty = _CERTAINTY.index(finding.certainty)
    return certainty == 2, _ENDING[finding.outcome], certainty, not (finding.culprits or finding.ways)


def _waits_for(one: Finding, other: Finding, graph: WaitGraph) -> bool:
    """All whom `one` names wait for somebody whom `other` names: it is the leaf, and the other the root."""
    named = {culprit.rank for culprit in one.culprits if culprit.rank is not None}
    roots = {culprit.rank for culprit in other.culprits if culprit.rank is not None} - named
    return bool(named) and any(named <= set(graph.waiters_of(root)) for root in roots)
