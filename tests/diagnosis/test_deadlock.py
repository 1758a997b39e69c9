"""Planted faults: the cause, the ranks and the line are found whatever the program around them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from incidents import Incident, incident, plans
from msgspec.structs import replace
from synthetic import CAUSES, Plan, Site

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Evidence
from rankscope.report.conclude import conclude
from searching import searched

REDUCE = Site("all_reduce", 3, second=False, helper=False)
ON_SECOND = replace(REDUCE, second=True)
BROADCAST = replace(REDUCE, op="broadcast")


def plan(plant: str, *body: Site, ranks: int = 4, odd: tuple[int, ...] = (2,), **fields: object) -> Plan:
    values: dict[str, object] = {"second": frozenset(), "steps": 2, "place": 0, "step": 1, "on_second": False}
    values |= {"backend": "gloo", "sources": True, "eager": False, **fields}
    return Plan(ranks=ranks, odd=frozenset(odd), body=body or (REDUCE,), plant=plant, **values)  # type: ignore[arg-type]


def ranks_of(verdict: Verdict) -> set[int | None]:
    return {culprit.rank for culprit in verdict.culprits}


def check(case: Incident) -> None:
    assume(case.happened())
    verdict = conclude(case.evidence)
    assert (verdict.outcome, verdict.cause) == ("slow" if case.cause == "slow-rank" else "hang", case.cause)
    named = ranks_of(verdict)
    assert case.accepts(frozenset(named)), verdict.headline
    if case.line is not None and named == case.culprits:
        assert {each.where.line if each.where else None for each in verdict.culprits} == {case.line}
    assert not named & set(verdict.victims)
    assert named | set(verdict.victims) <= set(range(case.plan.ranks))


@pytest.mark.parametrize("plant", sorted(CAUSES))
@searched(25)
@given(data=st.data())
def test_a_planted_fault_is_found(plant: str, data: st.DataObject) -> None:
    check(incident(data.draw(plans((plant,)))))


@pytest.mark.parametrize("plant", sorted(CAUSES))
@pytest.mark.parametrize("backend", ["gloo", "none", "nccl"])
def test_a_planted_fault_is_found_in_a_plain_program(plant: str, backend: str) -> None:
    if plant == "stopped-inside" and backend == "nccl":
        pytest.skip("a stopped process does not stop its GPU")
    second = frozenset(range(4)) if plant == "crossed" else frozenset()
    case = incident(plan(plant, second=second, backend=backend))
    verdict = conclude(case.evidence)
    assert (verdict.cause, ranks_of(verdict)) == (case.cause, set(case.culprits))
    assert verdict.victims == (0, 1, 3)


def test_two_ranks_without_source_are_never_told_apart_wrongly() -> None:
    for plant in ("return-rank", "extra-rank", "mismatch", "recv"):
        for odd in (0, 1):
            verdict = conclude(incident(plan(plant, ranks=2, odd=(odd,), sources=False)).evidence)
            assert ranks_of(verdict) != {1 - odd}


def test_a_rank_that_waits_only_for_a_crossing_has_no_part_in_it() -> None:
    """Ranks 1 and 3 differ in group 1; rank 0 and 2 merely wait for them in the default group."""
    body = (REDUCE, ON_SECOND)
    for backend in ("gloo", "nccl"):
        case = incident(plan("mismatch", *body, odd=(1,), second=frozenset({1, 3}), on_second=True, backend=backend))
        verdict = conclude(case.evidence)
        assert verdict.cause == "collective-mismatch"
        assert verdict.culprits == (), "two ranks, and nothing shows which is wrong"
        assert {rank for side in verdict.sides for rank in side.ranks} == {1, 3}


def test_a_call_of_one_group_passed_by_is_no_crossing_of_groups() -> None:
    """Rank 1 leaves check() early and waits in the default group; rank 0 waits for it in group 1, as it should."""
    case = incident(plan("return-rank", REDUCE, ranks=5, odd=(1,), second=frozenset({0, 1, 2}), on_second=True, step=1))
    verdict = conclude(case.evidence)
    assert (verdict.cause, ranks_of(verdict)) == ("collective-skipped", {1})
    assert verdict.victims == (0, 2, 3, 4)


def test_the_end_of_the_data_after_equally_many_batches_is_no_shortage() -> None:
    """The others leave the loop after the same batch, while rank 2 stands in a call of its own in the last one."""
    case = incident(plan("extra-rank", ranks=4, odd=(2,), steps=1, step=0, backend="nccl", sources=False))
    assert conclude(case.evidence).cause == "collective-skipped"
    data = incident(plan("return-data", replace(REDUCE, op="barrier"), steps=1, step=0, sources=False))
    assert conclude(data.evidence).cause == "collective-skipped"


def test_what_was_issued_to_the_gpu_after_the_fault_does_not_hide_it() -> None:
    case = incident(plan("mismatch", REDUCE, replace(REDUCE, numel=9), odd=(1,), backend="nccl"))
    verdict = conclude(case.evidence)
    assert (verdict.cause, ranks_of(verdict)) == ("collective-mismatch", {1})


def test_a_process_stopped_inside_a_collective_that_all_have_entered_is_named() -> None:
    verdict = conclude(incident(plan("stopped-inside")).evidence)
    assert (verdict.cause, ranks_of(verdict), verdict.victims) == ("frozen-process", {2}, (0, 1, 3))


def without_notes(case: Incident, rank: int) -> Evidence:
    """The rank's own notes are lost, and with them its lines and roots; torch's recorder is left."""
    ranks = tuple(replace(seen, progress=None) if seen.rank == rank else seen for seen in case.evidence.ranks)
    return replace(case.evidence, ranks=ranks)


def test_a_culprit_whose_lines_are_lost_is_known_by_its_operation() -> None:
    case = incident(plan("extra-rank", BROADCAST, odd=(3,), sources=False, eager=True))
    verdict = conclude(without_notes(case, 3))
    assert ranks_of(verdict) == {3}
    assert "a line that was not recorded" in verdict.headline


def test_a_victim_whose_lines_are_lost_is_counted_among_those_that_did_the_same() -> None:
    case = incident(plan("extra-rank", BROADCAST, odd=(1,), sources=False))
    verdict = conclude(without_notes(case, 0))
    assert (ranks_of(verdict), verdict.victims) == ({1}, (0, 2, 3))


def test_a_root_that_is_not_known_is_no_other_root() -> None:
    body = (REDUCE, BROADCAST)
    case = incident(plan("stopped-inside", *body, steps=1, step=0, place=1, sources=False, eager=True))
    verdict = conclude(without_notes(case, 1))
    assert (verdict.cause, ranks_of(verdict), verdict.victims) == ("frozen-process", {2}, (0, 1, 3))
