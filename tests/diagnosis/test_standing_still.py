"""Stillness decides whether a rank hangs: whatever it stands in, and never one that still does a little."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from in_words import Told, in_words
from msgspec.structs import replace

from rankscope.diagnosis.diagnose import diagnose
from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.evidence.model import ProcessSample, RankEvidence, StackSample, Syscall

POLL = "def wait(flag):\n    while not flag.set_by_somebody:\n        time.sleep(0.1)\n"
WORK = "def pace(items):\n    for item in items:\n        handle(item)\n        time.sleep(0.5)\n"


def explain(rank: RankEvidence, **fields: Any) -> Told:
    return in_words(explain_standing(rank, make.evidence(rank, **fields), waiters=(0, 1, 3)))


def still(*threads: Any, **fields: Any) -> RankEvidence:
    return make.rank(2, *threads, **{"still_for_s": 40.0, "processes": make.process(), **fields})


def earlier(count: int, every_s: float, *, sleeps: int, main_cpu: float) -> tuple[ProcessSample, ...]:
    """Samples of looks before the newest one, each after so many sleeps and so much work of the main thread."""
    first = make.process("clock_nanosleep", main_cpu=0.0)[0]
    return tuple(
        replace(
            first,
            at=first.at - n * every_s,
            sleeps=(first.sleeps or 0) - n * sleeps,
            main_cpu_s=(first.main_cpu_s or 0.0) - n * main_cpu,
        )
        for n in range(count, 0, -1)
    )


def seen_at(line: int, at: float) -> StackSample:
    return replace(make.samples(make.stack("train.py", line, "work"), times=1)[0], at=at)


@pytest.mark.parametrize("syscall", ["futex", "ioctl", "syscall 447", "mmap", "shmat", None])
def test_a_still_rank_is_a_likely_hang_whatever_it_stands_in(syscall: str | None) -> None:
    finding = explain(still(make.stack("train.py", 2, "step"), processes=make.process(syscall)))
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "stalled", "likely")
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 2
    assert "not moved for 40 s" in finding.because


def test_a_stalled_rank_is_named_by_line_library_native_function_and_system_call() -> None:
    frames = (make.lib("faissish/index.py", "_train_chunk"), make.lib("faissish/api.py", "build"))
    main = make.stack("train.py", 31, "build_index", frames)
    with_native = make.thread((make.native("__futex_wait"), make.native("omp_barrier"), *main.frames))
    stacks = (*make.samples(main), *make.samples(with_native, times=1, source="py-spy-native"))
    finding = explain(still(stacks=stacks, processes=make.process(Syscall("futex"))))
    assert finding.cause == "stalled"
    assert finding.summary == (
        "rank 2 is standing in build_index (train.py:31), in faissish.api.build, "
        "innermost faissish.index._train_chunk, native omp_barrier, system call futex, and does not move"
    )


def test_before_the_threshold_it_is_only_possible() -> None:
    rank = still(make.stack("train.py", 2, "step"), processes=make.process("ioctl"), still_for_s=3.0)
    assert explain(rank).certainty == "possible"
    assert explain(rank, stall_after_s=None).certainty == "possible"


def test_an_unknown_stand_that_nobody_waits_for_is_no_likely_hang() -> None:
    ranks = [make.rank(n, make.stack("train.py", 2, "step"), still_for_s=40.0, processes=make.process("ioctl"),
                       progress=make.progress()) for n in range(2)]  # fmt: skip
    ruling = diagnose(make.evidence(*ranks))
    assert (ruling.outcome, ruling.cause, ruling.certainty) == ("hang", "stalled", "possible")


@pytest.mark.parametrize("share", [0.01, 0.02, 0.03])
def test_a_little_work_between_short_sleeps_is_life(share: float) -> None:
    looks = make.process("clock_nanosleep", cpu=0.0, sleeps=1, main_cpu=share * 0.5)
    finding = explain(still(make.stack("train.py", 4, "pace"), processes=looks), source={"train.py": WORK})
    assert (finding.outcome, finding.cause) == ("slow", "slow-rank")
    assert any(reason.startswith("woke once within 0.5 s") for reason in finding.because)
    assert not any(reason.startswith("not moved") for reason in finding.because)


@pytest.mark.parametrize(("sleeps", "main_cpu"), [(5, 0.0004), (50, 0.006), (0, 0.0), (1, 0.0001)])
def test_a_wait_that_polls_is_stillness_however_often_it_wakes(sleeps: int, main_cpu: float) -> None:
    looks = make.process("clock_nanosleep", sleeps=sleeps, main_cpu=main_cpu)
    for source in ({"train.py": POLL}, {}):
        finding = explain(still(make.stack("train.py", 3, "wait"), processes=looks), source=source)
        assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "blocked-call", "likely")


def test_work_between_sleeps_that_are_longer_than_a_look_is_seen_over_several_looks() -> None:
    main = make.stack("train.py", 4, "pace")
    asleep = make.process("clock_nanosleep", sleeps=0, main_cpu=0.0)
    alone = still(main, processes=asleep)
    assert explain(alone).outcome == "hang"
    working = replace(alone, earlier_processes=earlier(3, 10.0, sleeps=3, main_cpu=0.15))
    assert explain(working).outcome == "slow"
    testing = replace(alone, earlier_processes=earlier(3, 10.0, sleeps=3, main_cpu=0.0004))
    assert explain(testing).outcome == "hang"


def test_work_of_long_ago_is_no_life_now() -> None:
    old = earlier(1, 35.0, sleeps=70, main_cpu=0.7)
    quiet = replace(make.process("clock_nanosleep", main_cpu=0.0)[0], at=make.NOW - 20.0)
    rank = still(
        make.stack("train.py", 4, "pace"),
        processes=make.process("clock_nanosleep", main_cpu=0.0),
        earlier_processes=(*old, quiet),
    )
    assert explain(rank).outcome == "hang"


def test_where_the_main_thread_is_not_told_apart_only_a_long_look_counts() -> None:
    looks = make.process("clock_nanosleep", cpu=0.01, sleeps=1)
    rank = still(make.stack("train.py", 4, "pace"), processes=looks)
    assert explain(rank).outcome == "hang"
    before = replace(looks[0], at=make.NOW - 20.0, cpu_s=4.5, sleeps=0)
    assert explain(replace(rank, earlier_processes=(before,))).outcome == "slow"


def test_a_stack_that_moves_among_a_few_lines_between_looks_is_life() -> None:
    before = (seen_at(20, make.NOW - 30), seen_at(20, make.NOW - 29.5), seen_at(24, make.NOW - 12))
    rank = still(make.stack("train.py", 20, "work"), processes=make.process("futex"), earlier_stacks=before)
    assert explain(rank).outcome == "slow"
    same = tuple(seen_at(20, sample.at) for sample in before)
    assert explain(replace(rank, earlier_stacks=same)).outcome == "hang"
    long_before = replace(rank, still_for_s=11.0)
    assert explain(long_before).outcome == "hang"


def test_what_a_library_does_beneath_one_line_of_the_user_is_not_progress() -> None:
    def retrying(function: str, at: float) -> StackSample:
        inner = [make.lib("urllib3ish/pool.py", function)]
        return replace(make.samples(make.stack("train.py", 20, "fetch", inner), times=1)[0], at=at)

    before = (retrying("connect", make.NOW - 25), retrying("sleep", make.NOW - 12))
    main = make.stack("train.py", 20, "fetch", [make.lib("urllib3ish/pool.py", "sleep")])
    rank = still(main, processes=make.process("clock_nanosleep"), earlier_stacks=before)
    assert explain(rank).outcome == "hang"


def test_an_evaluation_of_a_minute_is_slow_and_no_hang() -> None:
    rank = still(make.stack("train.py", 20, "evaluate"), processes=make.process(cpu=0.45), still_for_s=0.2)
    assert (explain(rank).outcome, explain(rank).cause) == ("slow", "slow-rank")


def test_of_several_roots_the_more_certain_one_is_named() -> None:
    def root(number: int, **fields: Any) -> RankEvidence:
        return make.rank(number, make.stack("train.py", 2, "step"), progress=make.progress(world=3), **fields)

    waiting = make.rank(
        0,
        make.stack("train.py", 9, "train", [make.lib("torch/distributed/distributed_c10d.py", "all_reduce")]),
        progress=make.progress(
            make.call(0, "all_reduce", make.frame("train.py", 9, "train"), seq=1, left=False), world=3
        ),
        processes=make.process("futex"),
        still_for_s=40.0,
    )
    just = root(1, processes=make.process("ioctl"), still_for_s=1.0)
    long = root(2, processes=make.process("ioctl"), still_for_s=40.0)
    ruling = diagnose(make.evidence(waiting, just, long))
    assert (ruling.outcome, ruling.cause, ruling.certainty) == ("hang", "stalled", "likely")
    assert [culprit.rank for culprit in ruling.culprits] == [2]
