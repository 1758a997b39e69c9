"""The verdict on a machine whose memory ran out says how the ranks' memory grew."""

from __future__ import annotations

from itertools import pairwise

from factories import ended, evidence, progress, rank
from msgspec.structs import replace

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import HostEvidence, MemoryMark, RankEvidence, Stage
from rankscope.launch.memory_track import MOST_KEPT, MemoryTrack
from rankscope.report.conclude import conclude

GB = 1 << 30
FIRST_STEP = Stage(
    index=0, label="first optimizer step", words="First optimizer step done", kind="first step", note="",
    entered_at=10.0, left_at=20.0, number=1, failed=False, announced=False, always=False, thread=1,
    memory_before=0, memory_after=0, gpu_before=0, gpu_after=0,
)  # fmt: skip


def grown(number: int, *gigabytes: float, **fields: object) -> RankEvidence:
    """A mark every 10 s."""
    marks = tuple(MemoryMark(10.0 * at, int(size * GB)) for at, size in enumerate(gigabytes))
    return rank(number, memory=marks, **fields)


def killed(*ranks: RankEvidence, kills: int = 1) -> Verdict:
    return conclude(evidence(*ranks, hosts=(HostEvidence("node-1", oom_kills=kills),)))


def test_growth_since_the_start_is_told() -> None:
    verdict = killed(rank(0), grown(1, 0.5, 4, 9, exit=ended(-9)))
    assert (verdict.cause, verdict.culprits[0].rank) == ("out-of-memory-host", 1)
    assert "rank 1's process held 512 MB of memory at first and 9.0 GB 20 s later" in verdict.because


def test_growth_with_every_step_is_told_with_what_to_do() -> None:
    training = replace(progress(steps=101), stages=(FIRST_STEP,))
    seen = grown(1, 0.5, 1, 2, 7, 12, exit=ended(-9), progress=training)
    verdict = killed(rank(0), seen)
    words = "rank 1's process held 2.0 GB of memory after its first step and 12.0 GB after 100 more, about 102 MB with"
    assert any(line.startswith(words) for line in verdict.because)
    assert "memory grows from step to step" in verdict.fix[0]


def test_neighbour_that_grew_more_than_the_killed_rank_is_told_too() -> None:
    """The memory killer need not have ended the one that filled the machine."""
    verdict = killed(grown(0, 1, 30), grown(1, 1, 2, exit=ended(-9)))
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    told = [line for line in verdict.because if "process held" in line]
    assert [line[:6] for line in told] == ["rank 1", "rank 0"]


def test_nothing_is_told_of_a_rank_that_did_not_grow_or_was_killed_by_somebody() -> None:
    level = killed(rank(0), grown(1, 8, 8.5, exit=ended(-9)))
    assert level.cause == "out-of-memory-host"
    by_hand = killed(rank(0), grown(1, 1, 8, exit=ended(-9)), kills=0)
    assert by_hand.cause == "killed"
    assert [line for verdict in (level, by_hand) for line in verdict.because if "process held" in line] == []


def test_a_long_job_keeps_few_marks_with_the_first_and_the_newest() -> None:
    track = MemoryTrack()
    for second in range(10_000):
        track.add(MemoryMark(0.5 * second, second))
    marks = track.marks
    assert len(marks) <= MOST_KEPT + 1
    assert (marks[0].bytes, marks[-1].bytes) == (0, 9_999)
    gaps = [after.at - before.at for before, after in pairwise(marks)]
    assert max(gaps) < 4 * 5_000 / MOST_KEPT
