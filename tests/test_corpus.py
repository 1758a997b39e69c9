"""The corpus: what was seen of every zoo case, diagnosed again with today's rules. No process is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

ZOO = Path(__file__).resolve().parent.parent / "zoo"
sys.path.insert(0, str(ZOO))

from corpus import JOB, RECORDED, load_recording, recording_path  # noqa: E402
from expectation import CASES, NCCL_CASES, STRANGERS, Case, case_names, load_case  # noqa: E402
from judge import GotCulprit, GotSide, GotVerdict, GotWhere, blamed_ranks, verdict_problems  # noqa: E402
from rankscope.diagnosis.verdict import Verdict, Where  # noqa: E402
from rankscope.evidence.model import Evidence  # noqa: E402
from rankscope.report.conclude import conclude  # noqa: E402

ROOTS = {"gloo": CASES, "nccl": NCCL_CASES, "strangers": STRANGERS}
TWO_RANKS = "two_ranks"
"""Cases of three ranks or more, run on two: there is no majority."""
ALL = sorted(path.relative_to(RECORDED).as_posix() for path in RECORDED.glob("*/*.json.xz"))
RECORDINGS = [path for path in ALL if not path.startswith(TWO_RANKS)]
NOT_RECORDED = {
    "jolly_walnut": "replicas of a reducer of the program's own are not known to be replicas",
    "damped_update": "NCCL pairs its calls wrongly, and nothing is said",
    "misty_trowel": "a shell that asks again and again in a child process counts as life: reported, not called a hang",
    "olive_hinge": "a child process that copies the same file for ever counts as life: reported, not called a hang",
    "quartz_fiddle": "the loss is not finite once, what came of it stays finite, and it ends well: no look was taken",
}
"""Case → why there is no recording of it with the right verdict."""
NOT_YET_RIGHT = {
    "zinc_pillow": "the line is that of the exception, not the one that ended the program because of it",
}
"""Case → what its verdict lacks; nobody else is blamed in it."""


def got(verdict: Verdict, case: Case) -> GotVerdict:
    culprits = [GotCulprit(each.rank, each.process, place(each.where, case)) for each in verdict.culprits]
    sides = [GotSide(list(each.ranks), place(each.where, case)) for each in verdict.sides]
    return GotVerdict(verdict.outcome, verdict.cause, verdict.certainty, culprits, verdict.headline, sides)


def place(where: Where | None, case: Case) -> GotWhere | None:
    return None if where is None else GotWhere(where.file.replace(JOB, str(case.folder), 1), where.line)


def case_of(recording: str) -> Case:
    kind, _, file = recording.partition("/")
    return load_case(file.removesuffix(".json.xz"), ROOTS[kind])


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_case_gets_its_verdict(recording: str) -> None:
    case = case_of(recording)
    for look in load_recording(RECORDED / recording).looks:
        verdict = got(conclude(look.evidence), case)
        if look.due and case.name in NOT_YET_RIGHT:
            assert verdict_problems(case, verdict) != [], "it is right by now: take it out of NOT_YET_RIGHT"
            assert blamed_ranks(verdict) <= case.expect.ranks, verdict.headline
        elif look.due:
            assert verdict_problems(case, verdict) == [], verdict.headline
        else:
            assert not alarms(verdict) or blamed_ranks(verdict) <= case.expect.ranks, verdict.headline
            assert not (alarms(verdict) and case.expect.healthy), verdict.headline


@pytest.mark.parametrize("recording", [path for path in RECORDINGS if path.startswith("nccl/")])
def test_without_times_of_the_gpu_nobody_else_is_blamed(recording: str) -> None:
    """Torch does not time collectives unless it is asked to; a few recordings have the times."""
    case = case_of(recording)
    for look in load_recording(RECORDED / recording).looks:
        verdict = got(conclude(_untimed(look.evidence)), case)
        assert not (case.expect.healthy and alarms(verdict)), verdict.headline
        if verdict.outcome not in ("ok", "slow"):
            assert blamed_ranks(verdict) <= case.expect.ranks, verdict.headline


@pytest.mark.parametrize("recording", RECORDINGS)
def test_where_no_process_may_be_looked_into_nobody_else_is_blamed(recording: str) -> None:
    """Ranks are then asked by a signal, and loader workers not at all. With NCCL, where those who wait burn processor
    time, two such stacks of a rank and the recorder are enough for the verdict."""
    case = case_of(recording)
    for look in load_recording(RECORDED / recording).looks:
        verdict = got(conclude(_on_a_signal(look.evidence)), case)
        assert not (case.expect.healthy and alarms(verdict)), verdict.headline
        if alarms(verdict):
            assert blamed_ranks(verdict) <= case.expect.ranks, verdict.headline
        if look.due:
            assert verdict.outcome == case.expect.outcome, verdict.headline
        if look.due and recording.startswith("nccl/"):
            assert verdict_problems(case, verdict) == [], verdict.headline


def _on_a_signal(evidence: Evidence) -> Evidence:
    ranks = []
    for seen in evidence.ranks:
        plain = [sample for sample in seen.stacks if sample.source != "py-spy-native"][-2:]
        stacks = tuple(
            replace(
                each, source="faulthandler", threads=tuple(replace(t, name="", owns_gil=False) for t in each.threads)
            )
            for each in plain
        )
        children = tuple(replace(child, stacks=()) for child in seen.children)
        ranks.append(replace(seen, stacks=stacks, children=children))
    return replace(evidence, ranks=tuple(ranks))


def _untimed(evidence: Evidence) -> Evidence:
    ranks = []
    for seen in evidence.ranks:
        entries = [
            replace(each, started_at=None, state="scheduled" if each.state == "started" else each.state)
            for each in seen.collectives
        ]
        ranks.append(replace(seen, collectives=tuple(entries)))
    return replace(evidence, ranks=tuple(ranks))


@pytest.mark.parametrize("recording", [path for path in ALL if path.startswith(TWO_RANKS)])
def test_on_two_ranks_the_verdict_is_right_or_tells_two_sides(recording: str) -> None:
    case = load_case(recording.partition("/")[2].removesuffix(".json.xz"), ranks=2)
    for look in load_recording(RECORDED / recording).looks:
        verdict = got(conclude(look.evidence), case)
        if not alarms(verdict):
            assert not look.due, verdict.headline
            continue
        assert blamed_ranks(verdict) <= case.expect.ranks, verdict.headline
        assert verdict_problems(case, verdict) == [] or (not verdict.culprits and len(verdict.sides) == 2)


def alarms(verdict: GotVerdict) -> bool:
    """Something would have been reported, or stopped, at this look."""
    return verdict.outcome in ("hang", "crash", "nan", "corrupt") and verdict.certainty != "possible"


@pytest.mark.parametrize("kind", sorted(ROOTS))
def test_every_case_is_recorded(kind: str) -> None:
    root = ROOTS[kind]
    missing = [name for name in case_names(root) if not recording_path(name, root).exists()]
    assert sorted(missing) == sorted(name for name in NOT_RECORDED if name in case_names(root))


@pytest.mark.parametrize("recording", ALL)
def test_recording_names_nothing_of_the_machine(recording: str) -> None:
    for look in load_recording(RECORDED / recording).looks:
        assert {host.host for host in look.evidence.hosts} <= {"node"}
        assert not [file for file in files_of(look.evidence) if file.startswith(("/work", "/root", "/home/"))]


def files_of(evidence: Evidence) -> set[str]:
    frames = [frame for seen in evidence.ranks for sample in seen.stacks for t in sample.threads for frame in t.frames]
    return {frame.file for frame in frames} | {source.file for source in evidence.sources}
