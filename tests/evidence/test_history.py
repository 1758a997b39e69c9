"""A look at a job carries what earlier looks saw of ranks that made no progress since."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.evidence.history import MOST_KEPT, with_earlier
from rankscope.evidence.model import (
    Evidence,
    Exit,
    Frame,
    ProcessSample,
    Progress,
    RankEvidence,
    StackSample,
    Thread,
)


def look(at: float, *, changed_at: float = 0.0, pid: int = 10, attempt: int = 0) -> Evidence:
    main = Thread(pid, "MainThread", True, (Frame("f", "/a.py", 3, user=True),))
    other = Thread(99, "helper", False, ())
    sample = ProcessSample(at, "S", 1.0, 0, 0, 0, sleeps=4, main_cpu_s=0.5)
    progress = Progress("training", 0.0, 3, 3, changed_at, 2, 0, (), ())
    rank = RankEvidence(
        0,
        0,
        "host",
        pid,
        0.0,
        progress=progress,
        stacks=(StackSample(at, (main, other), "py-spy"),),
        processes=(sample,),
    )
    return Evidence(1, at, 0.0, "still", 1, (rank,), attempt=attempt)


def test_the_samples_of_looks_before_are_kept_with_the_main_thread_alone() -> None:
    [rank] = with_earlier(look(5.0), with_earlier(look(3.0), look(2.0))).ranks
    assert [sample.at for sample in rank.earlier_processes] == [2.0, 3.0]
    assert [sample.at for sample in rank.earlier_stacks] == [2.0, 3.0]
    assert all(thread.main for sample in rank.earlier_stacks for thread in sample.threads)
    assert [sample.at for sample in rank.stacks] == [5.0]


def test_what_was_seen_before_the_last_progress_is_forgotten() -> None:
    [rank] = with_earlier(look(5.0, changed_at=2.5), with_earlier(look(3.0), look(2.0))).ranks
    assert [sample.at for sample in rank.earlier_processes] == [3.0]


def test_another_process_or_attempt_or_an_ended_rank_has_no_past() -> None:
    for newer in (look(5.0, pid=11), look(5.0, attempt=1)):
        assert with_earlier(newer, look(3.0)) == newer
    ended = look(5.0)
    ended = replace(ended, ranks=(replace(ended.ranks[0], exit=Exit(0, 4.0, False)),))
    assert with_earlier(ended, look(3.0)) == ended
    assert with_earlier(look(5.0), None) == look(5.0)


def test_the_past_does_not_grow_without_end() -> None:
    seen = look(1.0)
    for at in range(2, 40):
        seen = with_earlier(look(float(at)), seen)
    times = [sample.at for sample in seen.ranks[0].earlier_processes]
    assert len(times) == MOST_KEPT
    assert (times[0], times[-1]) == (1.0, 38.0)
