"""To name everybody is to name nobody: of a divergence the ways are told then, and no rank is blamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from incidents import Incident, incident, plans

from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.compose import not_everybody
from rankscope.diagnosis.facts.calls import NobodyStandsOut, Skipped
from rankscope.diagnosis.finding import Finding, Suspect
from rankscope.diagnosis.verdict import Where
from rankscope.report.conclude import conclude
from searching import searched

HERE, THERE = Where("train.py", 3, "main"), Where("train.py", 9, "main")


def found(cause: str, *places: Where) -> Finding:
    summary = Skipped(tuple(range(len(places))), "all_reduce", HERE, 1)
    culprits = tuple(Suspect(rank, None, None, "rank", at, summary) for rank, at in enumerate(places))
    return Finding("hang", cause, "proven", culprits, summary, ())


@pytest.mark.parametrize("cause", [cause.id for cause in CAUSES.values() if cause.apart])
def test_all_whom_a_divergence_concerns_are_sides_and_no_culprits(cause: str) -> None:
    told = not_everybody(found(cause, HERE, HERE, THERE), {0, 1, 2})
    assert told.culprits == ()
    assert [(way.ranks, way.where) for way in told.ways] == [((0, 1), HERE), ((2,), THERE)]
    assert told.summary == NobodyStandsOut((0, 1, 2))


def test_ranks_of_which_another_suffers_stay_culprits() -> None:
    finding = found("collective-skipped", HERE, HERE)
    assert not_everybody(finding, {0, 1, 2}) is finding
    assert not_everybody(found("collective-skipped", HERE), {0}).culprits


@pytest.mark.parametrize("cause", ["exception", "lock-wait", "blocked-call", "out-of-memory-gpu"])
def test_each_rank_may_fail_by_itself(cause: str) -> None:
    finding = found(cause, HERE, HERE)
    assert not_everybody(finding, {0, 1}) is finding


@searched(200)
@given(plans().map(incident))
def test_no_divergence_names_all_ranks_of_a_job(case: Incident) -> None:
    verdict = conclude(case.evidence)
    named = {culprit.rank for culprit in verdict.culprits if culprit.rank is not None}
    if verdict.cause is not None and CAUSES[verdict.cause].apart and len(named) > 1:
        assert {*verdict.victims, *named} > named, verdict.headline
