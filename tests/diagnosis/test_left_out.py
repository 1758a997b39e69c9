"""Ranks that left out a call, in a job of which the stacks at the end show nothing: by what was recorded before."""

from __future__ import annotations

import factories as make
import pytest
from ended_ranks import CLOSED, TIMED_OUT, victim
from msgspec.structs import replace

from rankscope.evidence.model import Call, Collective, Frame, Group, RankEvidence
from rankscope.report.conclude import conclude

TENSOR = make.frame("train.py", 8, "sync_tensor")
DATA = make.frame("train.py", 10, "sync_data")
SOURCE = """\
import torch.distributed as dist
me = dist.get_rank()
def sync_tensor(t):
    x = 1
    y = 2
    z = 3
    # the group of this row
    dist.all_reduce(t, group=row)
def sync_data(t):
    dist.all_reduce(t, group=column)
for step in range(50):
    sync_tensor(t)
    if broken(t):
        continue
    sync_data(t)
"""


def calls_of(*sites: Frame, failed: bool = False) -> tuple[Call, ...]:
    """One all_reduce a site, in the group of that site; the last one failed or went well."""
    counts: dict[Frame, int] = {}
    calls = []
    for index, site in enumerate(sites):
        counts[site] = counts.get(site, 0) + 1
        lines = {TENSOR: 12, DATA: 15}
        chain = (site, make.frame("train.py", lines[site], "<module>"))
        made = replace(make.call(index, "all_reduce", site, seq=counts[site]), site=chain, group=site.function)
        calls.append(made)
    return (*calls[:-1], replace(calls[-1], failed=failed))


def with_calls(number: int, *sites: Frame, failed: bool = False, code: int = 0) -> RankEvidence:
    progress = make.progress(*calls_of(*sites, failed=failed), world=2)
    if code:
        return victim(number, progress=progress, exit=make.ended(code, make.NOW))
    return make.rank(number, progress=progress, exit=make.ended(code, make.NOW - 1))


def test_a_rank_that_passed_by_a_call_and_ended_is_shown_with_that_call() -> None:
    short = with_calls(0, *[TENSOR, DATA] * 5, TENSOR, *[TENSOR, DATA] * 4)
    waits = with_calls(1, *[TENSOR, DATA] * 10, failed=True, code=1)
    verdict = conclude(make.evidence(short, waits, source={"train.py": SOURCE}, trigger="failure"))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("crash", "collective-skipped", "likely")
    [culprit] = verdict.culprits
    assert culprit.rank == 0
    assert culprit.where is not None
    assert culprit.where.line == 13
    assert "sync_data (train.py:10) in iteration 6" in verdict.headline
    assert [each.cause for each in verdict.alternatives] == ["rank-left"]


def test_a_rank_whose_calls_only_end_earlier_has_left() -> None:
    short = with_calls(0, *[TENSOR, DATA] * 9)
    waits = with_calls(1, *[TENSOR, DATA] * 9, TENSOR, failed=True, code=1)
    verdict = conclude(make.evidence(short, waits, source={"train.py": SOURCE}, trigger="failure"))
    assert (verdict.cause, verdict.certainty, verdict.culprits[0].rank) == ("rank-left", "proven", 0)


def test_ranks_that_part_for_good_are_not_taken_for_one_call_left_out() -> None:
    other = make.frame("train.py", 8, "sync_tensor")
    short = with_calls(0, *[TENSOR, DATA] * 5, *[TENSOR] * 9)
    waits = with_calls(1, *[other, DATA] * 7, failed=True, code=1)
    verdict = conclude(make.evidence(short, waits, source={"train.py": SOURCE}, trigger="failure"))
    assert verdict.cause == "rank-left"


def test_a_rank_that_ended_before_others_lost_it_in_an_unrecorded_collective_has_left() -> None:
    gone = make.rank(1, progress=make.progress(world=3), exit=make.ended(0, make.NOW - 2))
    lost = [victim(n, CLOSED, exit=make.ended(1, make.NOW)) for n in (0, 2)]
    verdict = conclude(make.evidence(lost[0], gone, lost[1], trigger="failure"))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("crash", "rank-left", "likely")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert verdict.victims == (0, 2)


@pytest.mark.parametrize("left", [(), (1, 2)], ids=["nobody left", "several left"])
def test_a_job_with_failed_ranks_is_never_well_even_where_nobody_can_be_named(left: tuple[int, ...]) -> None:
    ranks = [
        make.rank(n, exit=make.ended(0, make.NOW - 2))
        if n in left
        else victim(n, TIMED_OUT, exit=make.ended(1, make.NOW))
        for n in range(3)
    ]
    verdict = conclude(make.evidence(*ranks, trigger="failure"))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("crash", "comm-error", "possible")
    assert verdict.culprits == ()


BACKWARD = make.frame("train.py", 13, "<module>")
BARRIER = make.frame("train.py", 16, "<module>")
LOOP = """\
model = DDP(net)
accum = read_config()
#
#
#
#
#
#
#
for i in range(12):
    last = (i + 1) % accum == 0
    with nullcontext() if last else model.no_sync():
        model(batch()).sum().backward()
    if last:
        optimizer.step()
dist.barrier()
"""


def accumulating(number: int, passes: int, every: int, *, waits: bool) -> RankEvidence:
    """A rank that reduces in every n-th backward pass; in the last one it waits, or at the barrier behind the loop."""
    calls: list[Call] = []
    collectives: list[Collective] = []

    def recorded(op: str, at: float, done: bool) -> None:
        seq = len(collectives) + 1
        entry = Collective(
            record_id=seq - 1,
            group="default_pg",
            seq=seq,
            op=op,
            backend="gloo",
            created_at=at,
            state="scheduled",
            retired=done,
            p2p=False,
            p2p_seq=0,
        )
        collectives.append(entry)

    for index in range(passes):
        open_ = waits and index == passes - 1
        begun = make.NOW - 40 + index
        made = make.call(index, "backward", BACKWARD, left=not open_)
        calls.append(replace(made, group="", entered_at=begun, left_at=None if open_ else begun + 0.5))
        if (index + 1) % every == 0:
            recorded("all_reduce", begun + 0.2, not open_)
    if not waits:
        begun = make.NOW - 40 + passes
        calls.append(replace(make.call(passes, "barrier", BARRIER, seq=1, left=False), entered_at=begun))
        recorded("barrier", begun, False)
    at = BACKWARD if waits else BARRIER
    frames = (make.lib("torch/autograd/graph.py", "_engine_run_backward"), at)
    return make.rank(
        number,
        make.thread(frames),
        progress=make.progress(*calls, world=2),
        collectives=tuple(collectives),
        processes=make.process("futex"),
        still_for_s=5.0,
    )


def test_ranks_that_reduce_in_different_passes_did_not_run_out_of_data() -> None:
    inside, outside = accumulating(0, 12, 3, waits=True), accumulating(1, 12, 4, waits=False)
    verdict = conclude(make.evidence(inside, outside, source={"train.py": LOOP}))
    assert (verdict.outcome, verdict.cause) == ("hang", "collective-skipped")
    assert verdict.culprits == (), "nothing tells which of the two is right"
    assert {rank for side in verdict.sides for rank in side.ranks} == {0, 1}
    assert "in pass 3 rank 0 reduces, rank 1 not" in verdict.headline


def test_a_rank_with_fewer_passes_did_run_out_of_data() -> None:
    inside, outside = accumulating(0, 12, 3, waits=True), accumulating(1, 9, 3, waits=False)
    verdict = conclude(make.evidence(inside, outside, source={"train.py": LOOP}))
    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("uneven-data", [1])


def waiting_for_key(still: float) -> RankEvidence:
    at = make.frame("train.py", 11, "<module>")
    made = replace(make.call(3, "Store.wait", at, left=False), group="", note="vocab", entered_at=make.NOW - still)
    return make.rank(
        1,
        make.thread((make.lib("torch/distributed/x.py", "wait"), at)),
        progress=make.progress(made, world=2),
        processes=make.process("poll"),
        still_for_s=still,
    )


def in_reduction(still: float) -> RankEvidence:
    at = make.frame("train.py", 12, "<module>")
    made = replace(make.call(3, "all_reduce", at, seq=1, left=False), entered_at=make.NOW - still)
    return make.rank(
        0,
        make.thread((make.lib("torch/distributed/distributed_c10d.py", "all_reduce"), at)),
        progress=make.progress(made, world=2),
        processes=make.process("futex"),
        still_for_s=still,
    )


def test_a_key_that_only_waiting_ranks_could_set_is_a_likely_hang_after_the_threshold() -> None:
    verdict = conclude(make.evidence(in_reduction(12.0), waiting_for_key(12.0)))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "blocked-call", "likely")
    [culprit] = verdict.culprits
    assert culprit.rank == 1
    assert culprit.where is not None
    assert culprit.where.line == 11
    assert "'vocab'" in verdict.headline
    assert verdict.victims == (0,)


def test_a_key_may_still_come_before_the_threshold() -> None:
    assert conclude(make.evidence(in_reduction(4.0), waiting_for_key(4.0))).certainty == "possible"


HABIT = """\
me = dist.get_rank()
for step in range(50):
    dist.all_reduce(t, group=row)
    if step == 11 and me == 1:
        full = local
    else:
        dist.all_gather(full, local)
    dist.barrier(group=world)
"""
ROW, GATHER, BARRIER_OF_ALL = (make.frame("train.py", line, "<module>") for line in (3, 7, 8))


def gathering(number: int, rounds: int, *last: Frame) -> RankEvidence:
    """A rank that made so many rounds of HABIT, and stands in the last of some more calls."""
    groups = {ROW: "row", GATHER: "pair", BARRIER_OF_ALL: "0"}
    ops = {ROW: "all_reduce", GATHER: "all_gather", BARRIER_OF_ALL: "barrier"}
    counts: dict[str, int] = {}
    calls = []
    sites = [*[ROW, GATHER, BARRIER_OF_ALL] * rounds, *last]
    for index, site in enumerate(sites):
        group = groups[site]
        counts[group] = counts.get(group, 0) + 1
        open_ = index == len(sites) - 1
        made = make.call(index, ops[site], site, seq=counts[group], left=not open_)
        at = make.NOW - 60 + index
        calls.append(replace(made, group=group, entered_at=at, left_at=None if open_ else at + 0.5))
    members = (Group("row", "", (0, 1)), Group("pair", "", (0, 1)), Group("0", "", (0, 1)))
    return make.rank(
        number,
        make.thread((make.lib("torch/distributed/distributed_c10d.py", "call"), last[-1])),
        progress=make.progress(*calls, world=2, groups=members),
        processes=make.process("futex"),
        still_for_s=3.0,
    )


ON_DATA = """\
own = items()
for step in range(50):
    dist.all_reduce(t, group=row)

    if own:

        dist.all_gather(full, local)
    dist.barrier(group=world)
"""


def test_a_condition_on_data_that_was_always_true_names_who_left_the_call_out() -> None:
    """Only the two of the group know this call: there is no majority, but one of them has always made it."""
    keeps, leaves = gathering(0, 11, ROW, GATHER), gathering(1, 11, ROW, BARRIER_OF_ALL)
    verdict = conclude(make.evidence(keeps, leaves, source={"train.py": ON_DATA}))
    assert (verdict.outcome, verdict.cause) == ("hang", "collective-skipped")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert any("`if own` (train.py:5) keeps rank 1" in reason for reason in verdict.because)


def test_a_call_that_is_left_out_now_and_then_names_nobody() -> None:
    keeps = gathering(0, 11, ROW, GATHER)
    leaves = gathering(
        1, 11, ROW, BARRIER_OF_ALL, ROW, BARRIER_OF_ALL, ROW, GATHER, BARRIER_OF_ALL, ROW, BARRIER_OF_ALL
    )
    verdict = conclude(make.evidence(keeps, leaves, source={"train.py": ON_DATA}))
    assert [culprit.rank for culprit in verdict.culprits] == []


def test_the_rank_that_leaves_its_own_habit_is_blamed_not_the_one_that_keeps_it() -> None:
    keeps, leaves = gathering(0, 11, ROW, GATHER), gathering(1, 11, ROW, BARRIER_OF_ALL)
    verdict = conclude(make.evidence(keeps, leaves, source={"train.py": HABIT}))
    assert (verdict.outcome, verdict.cause) == ("hang", "collective-skipped")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert any("keeps rank 1 from train.py:7" in reason for reason in verdict.because)
