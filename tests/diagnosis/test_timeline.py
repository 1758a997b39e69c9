"""One rank's sequence of collectives, out of the flight recorder and the probe's calls, and where sequences part."""

from __future__ import annotations

import factories as make
import pytest
from hypothesis import assume, given
from incidents import incident, plans
from msgspec.structs import replace
from synthetic import Plan

from rankscope.diagnosis.divergence import find_divergence
from rankscope.diagnosis.timeline import build_timeline
from rankscope.diagnosis.wait_graph import build_graph
from rankscope.evidence.model import Call, Collective, RankEvidence
from searching import searched

SITE = make.frame("train.py", 5, "train")


def call(index: int, op: str = "all_reduce", *, at: float, left: float | None, seq: int = 1, group: str = "0") -> Call:
    return Call(index, op, group, seq, make.PID, 0, at, left, False, 0, -1, 4, "float32", (SITE,))


def entry(seq: int, at: float, *, retired: bool = True, **fields: object) -> Collective:
    values: dict[str, object] = {"group": "0", "op": "all_reduce", "backend": "gloo", "state": "scheduled", **fields}
    return Collective(seq, seq=seq, p2p_seq=0, p2p=False, retired=retired, created_at=at, **values)  # type: ignore[arg-type]


def rank(*collectives: Collective, calls: tuple[Call, ...] = ()) -> RankEvidence:
    return make.rank(0, collectives=collectives, progress=make.progress(*calls))


def test_an_entry_gets_the_line_of_the_call_that_was_open_then() -> None:
    later = replace(call(1, at=3.0, left=None, seq=2), site=(make.frame("train.py", 9, "train"),))
    timeline = build_timeline(rank(entry(1, 1.5), entry(2, 3.5, retired=False), calls=(call(0, at=1, left=2), later)))
    sites = [event.site[0].line for seq in (1, 2) if (event := timeline.at("0", seq)) is not None]
    assert sites == [5, 9]


def test_of_two_threads_each_entry_gets_the_call_of_its_own_group() -> None:
    other = replace(call(1, at=1.2, left=2, group="1"), site=(make.frame("train.py", 9, "helper"),))
    entries = (entry(1, 1.5), replace(entry(1, 1.6, group="1"), record_id=2))
    timeline = build_timeline(rank(*entries, calls=(call(0, at=1, left=2), other)))
    lines = [event.site[0].line for group in ("0", "1") if (event := timeline.at(group, 1)) is not None]
    assert lines == [5, 9]


def test_an_entry_outside_all_calls_has_no_line_unless_its_own() -> None:
    alone = build_timeline(rank(entry(1, 2.5), calls=(call(0, at=1, left=2),))).at("0", 1)
    assert alone is not None
    assert alone.site == ()
    framed = build_timeline(rank(entry(1, 2.5, frames=(make.lib("torch/x.py", "f"), SITE)))).at("0", 1)
    assert framed is not None
    assert framed.site == (SITE,)


def test_collectives_issued_in_backward_get_its_line() -> None:
    backward = replace(call(0, "backward", at=1, left=None, seq=0, group=""), step=7)
    timeline = build_timeline(rank(entry(1, 1.2), entry(2, 1.3, retired=False), calls=(backward,)))
    assert [(event.seq, event.step, event.site) for event in timeline.pending()] == [(2, 7, (SITE,))]


@pytest.mark.parametrize(
    ("state", "retired", "done"),
    [("scheduled", False, False), ("started", False, False), ("completed", False, True), ("scheduled", True, True)],
)
def test_an_entry_is_done_when_completed_or_retired(state: str, retired: bool, done: bool) -> None:
    event = build_timeline(rank(entry(1, 1.0, state=state, retired=retired, backend="nccl"))).at("0", 1)
    assert event is not None
    assert event.done is done


def test_messages_and_calls_without_a_number_are_no_events() -> None:
    assert build_timeline(rank(replace(entry(1, 1.0), p2p=True))).events == {}
    assert build_timeline(rank(calls=(call(0, "recv", at=1, left=None, seq=0),))).events == {}


def test_the_newest_is_known_even_where_its_entry_is_lost() -> None:
    seen = replace(rank(entry(4, 1.0)), last_enqueued={"0": 9, "1": 2})
    assert build_timeline(seen).newest == {"0": 9, "1": 2}


def test_sizes_matter_only_where_every_rank_must_pass_the_same() -> None:
    def signature(op: str, size: int) -> tuple[str, int, str, int, str]:
        event = build_timeline(rank(entry(1, 1.0, op=op, input_sizes=((size, 2),)))).at("0", 1)
        assert event is not None
        return event.signature()

    assert signature("all_reduce", 3) != signature("all_reduce", 4)
    assert signature("all_to_all", 3) == signature("all_to_all", 4)
    assert signature("barrier", 3) != signature("all_reduce", 3)


@searched(60)
@given(plans())
def test_recorder_and_probe_tell_the_same_sequence(plan: Plan) -> None:
    """On gloo, where barriers are recorded as such, both name the same operations, sizes and lines."""
    with_recorder = incident(replace(plan, backend="gloo")).evidence
    for seen in with_recorder.ranks:
        both = build_timeline(seen), build_timeline(replace(seen, collectives=()))
        told = [
            {(e.group, e.seq): (e.op, e.site, e.done) for group in each.events.values() for e in group.values()}
            for each in both
        ]
        assert told[0] == told[1]
        assert both[0].newest == both[1].newest == both[0].called


@searched(60)
@given(plans(("extra-rank", "pairing", "mismatch", "return-data"), smallest=3))
def test_sequences_part_between_the_culprits_and_the_others(plan: Plan) -> None:
    case = incident(replace(plan, second=frozenset()))
    assume(case.happened())
    found = find_divergence("0", build_graph(case.evidence).states)
    assert found is not None
    sides = [frozenset(side.ranks) for side in found.sides]
    assert sorted(map(sorted, sides)) == sorted(map(sorted, (plan.odd, frozenset(range(plan.ranks)) - plan.odd)))


@searched(40)
@given(plans(("",)))
def test_ranks_that_did_the_same_do_not_part(plan: Plan) -> None:
    case = incident(plan)
    assert not case.happened()
    states = build_graph(case.evidence).states
    assert find_divergence("0", states) is None
    assert find_divergence("1", states) is None
