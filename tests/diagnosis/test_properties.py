"""What must hold of every diagnosis: it is about what ranks did, not about their numbers, order or completeness."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import factories as make
from hypothesis import assume, given
from hypothesis import strategies as st
from incidents import Incident, incident, plans
from msgspec.structs import replace
from synthetic import Plan

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Exit,
    Frame,
    Group,
    Loader,
    ProcessSample,
    Progress,
    RaisedException,
    RankEvidence,
    Source,
    StackSample,
    Syscall,
    Thread,
)
from rankscope.evidence.store import load_evidence, save_evidence
from rankscope.report.conclude import conclude
from searching import searched

INCIDENTS = plans().map(incident)
QUICK = searched(120)


def told(verdict: Verdict) -> tuple[object, ...]:
    """A verdict without its words."""
    culprits = {(each.rank, each.process, each.where) for each in verdict.culprits}
    return verdict.outcome, verdict.cause, verdict.certainty, culprits, set(verdict.victims)


def renumbered(seen: RankEvidence, number: dict[int, int]) -> RankEvidence:
    progress = seen.progress
    if progress is not None:
        calls = tuple(replace(call, peer=number.get(call.peer, call.peer)) for call in progress.calls)
        groups = tuple(replace(g, ranks=tuple(sorted(number[rank] for rank in g.ranks))) for g in progress.groups)
        progress = replace(progress, calls=calls, groups=groups)
    return replace(seen, rank=number[seen.rank], local_rank=number[seen.local_rank], progress=progress)


@QUICK
@given(INCIDENTS, st.randoms(use_true_random=False))
def test_renumbering_the_ranks_renumbers_the_verdict(case: Incident, chance: random.Random) -> None:
    shuffled = list(range(case.plan.ranks))
    chance.shuffle(shuffled)
    number = dict(enumerate(shuffled))
    ranks = sorted((renumbered(seen, number) for seen in case.evidence.ranks), key=lambda seen: seen.rank)
    before, after = conclude(case.evidence), conclude(replace(case.evidence, ranks=tuple(ranks)))
    culprits = {(number[e.rank], e.process, e.where) for e in before.culprits if e.rank is not None}
    victims = {number[rank] for rank in before.victims}
    assert told(after) == (before.outcome, before.cause, before.certainty, culprits, victims)
    assert after.exit_codes == {number[rank]: code for rank, code in before.exit_codes.items()}


@QUICK
@given(INCIDENTS, st.randoms(use_true_random=False))
def test_the_order_of_the_evidence_does_not_matter(case: Incident, chance: random.Random) -> None:
    ranks = list(case.evidence.ranks)
    chance.shuffle(ranks)
    before, after = conclude(case.evidence), conclude(replace(case.evidence, ranks=tuple(ranks)))
    assert told(after) == told(before)
    assert after.headline == before.headline


@QUICK
@given(INCIDENTS, st.data())
def test_an_innocent_rank_more_changes_nothing_but_the_victims(case: Incident, data: st.DataObject) -> None:
    """It did what one of the innocent did, and waits where that one waits."""
    assume(case.happened() and not case.undecided())
    before = conclude(case.evidence)
    like = data.draw(st.sampled_from([seen for seen in case.evidence.ranks if seen.rank in before.victims]))
    new = case.plan.ranks
    joined = {group.name for group in like.progress.groups} if like.progress is not None else set()
    ranks = tuple(_told_of(seen, new, joined) for seen in case.evidence.ranks)
    twin = replace(_told_of(like, new, joined), rank=new, local_rank=new, pid=make.PID + new)
    after = conclude(replace(case.evidence, ranks=(*ranks, twin), world_size=new + 1))
    outcome, cause, certainty, culprits, victims = told(before)
    assert isinstance(victims, set)
    assert told(after) == (outcome, cause, certainty, culprits, victims | {new})


def _told_of(seen: RankEvidence, new: int, joined: set[str]) -> RankEvidence:
    progress = seen.progress
    if progress is None:
        return seen
    groups = tuple(replace(g, ranks=(*g.ranks, new)) if g.name in joined else g for g in progress.groups)
    return replace(seen, progress=replace(progress, groups=groups, declared_world=new + 1))


@QUICK
@given(INCIDENTS, st.data())
def test_losing_sight_of_a_rank_never_moves_the_blame_to_a_victim(case: Incident, data: st.DataObject) -> None:
    assume(case.happened() and not case.undecided())
    lost = data.draw(st.integers(0, case.plan.ranks - 1))
    what = data.draw(st.sampled_from(["all", "stacks", "collectives", "progress", "processes"]))
    ranks = [_without(seen, what) if seen.rank == lost else seen for seen in case.evidence.ranks]
    kept = tuple(seen for seen in ranks if seen is not None)
    verdict = conclude(replace(case.evidence, ranks=kept))
    named = {culprit.rank for culprit in verdict.culprits}
    assert named <= case.culprits, verdict.headline


def _without(seen: RankEvidence, what: str) -> RankEvidence | None:
    if what == "all":
        return None
    if what == "collectives":
        return replace(seen, collectives=(), last_enqueued={})
    if what == "progress":
        return replace(seen, progress=None)
    return replace(seen, stacks=()) if what == "stacks" else replace(seen, processes=())


@QUICK
@given(plans(("",)), st.floats(0, 1), st.sampled_from([1.0, 20.0, 400.0]))
def test_a_job_on_its_way_is_never_called_hung(plan: Plan, part: float, slowness: float) -> None:
    """Seen at any moment of a healthy run: ranks between two calls are at work, the others wait for them."""
    evidence = incident(plan).evidence
    ends = [seen.exit.at for seen in evidence.ranks if seen.exit is not None]
    begin = min(seen.progress.calls[0].entered_at for seen in evidence.ranks if seen.progress and seen.progress.calls)
    now = begin + part * (max(ends) - begin)
    ranks = tuple(_on_its_way(seen, now, slowness) for seen in evidence.ranks)
    verdict = conclude(replace(evidence, ranks=ranks))
    assert verdict.outcome in ("ok", "slow"), verdict.headline


def _on_its_way(seen: RankEvidence, now: float, slowness: float) -> RankEvidence:
    """The rank as it was seen at `now`, with all times drawn out so that waits may be long, and `now` at make.NOW."""

    def when(at: float) -> float:
        return make.NOW + (at - now) * slowness

    assert seen.progress is not None
    if seen.exit is not None and seen.exit.at <= now:
        return replace(seen, exit=replace(seen.exit, at=when(seen.exit.at)), progress=None)
    calls = tuple(
        replace(c, entered_at=when(c.entered_at), left_at=when(c.left_at) if c.left_at and c.left_at <= now else None)
        for c in seen.progress.calls
        if c.entered_at <= now
    )
    left = {(c.group, c.seq) for c in calls if c.left_at is not None}
    records = tuple(
        replace(e, created_at=when(e.created_at), retired=(e.group, e.seq) in left, state="scheduled")
        for e in seen.collectives
        if e.created_at <= now
    )
    newest = {name: max(e.seq for e in records if e.group == name) for name in {e.group for e in records}}
    site = calls[-1].site if calls and calls[-1].left_at is None else ()
    at_work = (
        make.samples(make.stack("train.py", 3, "train"), times=1)[0],
        make.samples(make.stack("train.py", 4, "train"), times=1)[0],
    )
    waiting = make.samples(make.thread((make.lib("torch/distributed/distributed_c10d.py", "f"), *site)))
    return replace(
        seen,
        exit=None,
        progress=replace(seen.progress, calls=calls, loader=None, finalizing=False),
        collectives=records,
        last_enqueued=newest,
        stacks=waiting if site else at_work,
        processes=make.process("futex") if site else make.process(cpu=0.5, state="R"),
        still_for_s=make.NOW - calls[-1].entered_at if site else 0.0,
    )


@searched(40)
@given(plans(("",)))
def test_a_job_whose_ranks_all_finished_is_well(plan: Plan) -> None:
    verdict = conclude(incident(plan).evidence)
    assert (verdict.outcome, verdict.cause, verdict.culprits, verdict.victims) == ("ok", None, (), ())


@searched(40)
@given(INCIDENTS)
def test_saved_evidence_gives_the_same_verdict(case: Incident) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_evidence(case.evidence, Path(folder))
        loaded = load_evidence(Path(folder))
    assert loaded == case.evidence
    assert conclude(loaded) == conclude(case.evidence)


SMALL = st.integers(-1, 5)
TIMES = st.floats(make.NOW - 100, make.NOW)
OPS = st.sampled_from(
    ["all_reduce", "barrier", "broadcast", "recv", "send", "Work.wait", "Store.get", "new_group", "backward",
     "init_process_group", "destroy_process_group", "monitored_barrier", "batch_isend_irecv", ""]
)  # fmt: skip
NAMES = st.sampled_from(["0", "1", ""])
FRAMES = st.builds(
    Frame,
    st.sampled_from(["f", "<module>", "synchronize", "_next_data", "_shutdown"]),
    st.sampled_from([make.USER + "train.py", make.SITE + "torch/cuda/__init__.py", make.STDLIB + "threading.py", ""]),
    st.integers(0, 9),
    user=st.booleans(),
    native=st.booleans(),
)
SITES = st.lists(FRAMES, max_size=3).map(tuple)
CALLS = st.builds(
    Call, SMALL, OPS, NAMES, SMALL, st.integers(0, 1), st.integers(0, 1), TIMES, st.none() | TIMES, st.booleans(),
    SMALL, SMALL, SMALL, st.sampled_from(["", "float32"]), SITES,
)  # fmt: skip
RECORDS = st.builds(
    Collective, SMALL, NAMES, SMALL, SMALL, OPS, st.sampled_from(["gloo", "nccl", ""]), st.booleans(),
    st.sampled_from(["scheduled", "started", "completed", "?"]), st.booleans(), TIMES,
    input_sizes=st.lists(st.lists(SMALL, max_size=2).map(tuple), max_size=2).map(tuple),
    input_dtypes=st.sampled_from([(), ("Float",)]), frames=SITES,
)  # fmt: skip
GROUPS = st.builds(Group, NAMES, st.just(""), st.lists(SMALL, max_size=4).map(tuple))
PROGRESS = st.builds(
    Progress, st.sampled_from(["", "training"]), TIMES, SMALL, SMALL, TIMES, SMALL, SMALL,
    st.lists(CALLS, max_size=5).map(tuple), st.lists(GROUPS, max_size=2).map(tuple),
    st.none() | st.builds(Loader, SMALL, SMALL, st.booleans(), SMALL, st.booleans(), TIMES, SITES),
    exit_site=SITES, finalizing=st.booleans(), signals=st.sampled_from([(), ("SIGTERM",)]),
)  # fmt: skip
THREADS = st.builds(Thread, SMALL, st.just("T"), st.booleans(), SITES, st.booleans(), st.booleans())
STACKS = st.builds(StackSample, TIMES, st.lists(THREADS, max_size=2).map(tuple), st.just("py-spy"))
SAMPLES = st.builds(
    ProcessSample, TIMES, st.sampled_from("RSDTtZ"), st.floats(0, 9), SMALL, SMALL, SMALL,
    syscall=st.none() | st.builds(Syscall, st.sampled_from(["futex", "poll", "nanosleep", "read"])),
)  # fmt: skip
ERRORS = st.builds(
    RaisedException, st.sampled_from(["ValueError", "torch.distributed.DistBackendError", ""]), st.text(max_size=20),
    st.none() | TIMES, SITES, st.sampled_from(["hook", "pending", "output", "error-file"]),
)  # fmt: skip
RANKS = st.builds(
    RankEvidence, SMALL, SMALL, st.sampled_from(["a", "b"]), SMALL, TIMES,
    exit=st.none() | st.builds(Exit, st.sampled_from([0, 0, 1, 137, -6, -9, -11, 300]), TIMES, st.booleans()),
    progress=st.none() | PROGRESS, stacks=st.lists(STACKS, max_size=2).map(tuple),
    processes=st.lists(SAMPLES, max_size=2).map(tuple), collectives=st.lists(RECORDS, max_size=4).map(tuple),
    last_enqueued=st.dictionaries(NAMES, SMALL, max_size=2), exceptions=st.lists(ERRORS, max_size=2).map(tuple),
    crash_stack=SITES, error_tail=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    still_for_s=st.none() | st.floats(0, 100),
)  # fmt: skip
ANYTHING = st.builds(
    Evidence, st.just(1), st.just(make.NOW), TIMES, st.sampled_from(["still", "failure", "interrupt", "end"]),
    st.integers(0, 6), st.lists(RANKS, max_size=4, unique_by=lambda seen: seen.rank).map(tuple),
    sources=st.builds(Source, st.just(make.USER + "train.py"), SMALL, st.text(max_size=40)).map(lambda text: (text,)),
    stall_after_s=st.none() | st.floats(0, 100),
)  # fmt: skip


@searched(250)
@given(ANYTHING)
def test_any_evidence_has_a_verdict(evidence: Evidence) -> None:
    verdict = conclude(evidence)
    assert verdict.headline
    assert (verdict.cause is None) == (verdict.outcome in ("ok", "interrupted"))
    assert verdict.cause is None or verdict.fix
    known = {seen.rank for seen in evidence.ranks}
    assert {each.rank for each in verdict.culprits} <= known | {None}
    assert set(verdict.victims) <= known
    assert not {each.rank for each in verdict.culprits} & set(verdict.victims)
