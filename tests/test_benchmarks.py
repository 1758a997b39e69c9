"""What the benchmarks make of the times they measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_ratio_is_that_of_the_middle_start_and_its_interval_holds_what_the_starts_say() -> None:
    import step_time

    found = step_time._ratio([[0.99, 1.0, 1.01], [1.03, 1.02, 1.01], [1.10, 1.10, 1.10]])
    assert found.median == 1.02
    assert found.low <= 1.01
    assert 1.02 <= found.high <= 1.10
    assert step_time._ratio([[1.0] * 4] * 4) == step_time.Ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("median", "low", "high", "said"),
    [
        (1.001, 0.999, 1.004, "met"),
        (1.020, 1.010, 1.030, "missed"),
        (1.003, 0.990, 1.020, "met by the median, interval reaches 1.0200"),
        (1.008, 0.990, 1.020, "open, interval from 0.9900"),
    ],
)
def test_goal_is_settled_only_by_the_whole_interval(median: float, low: float, high: float, said: str) -> None:
    import step_time

    assert step_time.Ratio(median, low, high).judged(1.005) == said


@pytest.mark.parametrize(("pairs", "low", "high"), [(4, 0, 3), (6, 0, 5), (12, 2, 9)])
def test_time_to_the_first_step_has_the_interval_of_a_median(pairs: int, low: int, high: int) -> None:
    import overhead

    runs = [
        overhead.Run(launcher, pair, (100 + pair if launcher == "rankscope" else 100), 1.0)
        for pair in range(pairs)
        for launcher in ("torchrun", "rankscope")
    ]
    found = overhead.ratio(runs, "first_step_s", 1.08)
    assert (found.low, found.high) == ((100 + low) / 100, (100 + high) / 100)
    assert found.judged == ("goal 1.08: met" if pairs < 12 else "goal 1.08: open, too few pairs")


def test_first_steps_of_a_turn_do_not_count() -> None:
    import step_time

    settling = [(9.0, 9.0)] * step_time.SETTLE
    turn = [*settling, (0.010, 0.004), (0.011, 0.005), (0.018, 0.006)]
    assert step_time._medians(turn) == (0.011, 0.005)
    assert round(step_time._mean([turn, [*settling, (0.001, 0.001)]]), 6) == 0.010


def test_turns_of_a_job_read_every_batch_once_a_round() -> None:
    import step_job

    assert step_job.BATCHES % step_job.TURN == 0
    compile(step_job.in_turns(), "train.py", "exec")


@pytest.mark.slow
def test_two_jobs_make_the_same_number_of_steps_in_turns(tmp_path: Path) -> None:
    import step_time

    one, two = step_time.measure(tmp_path, 3, 1, None, swapped=True, null=False)
    assert [len(turn) for turn in one] == [len(turn) for turn in two] == [8, 8, 8]
    assert all(0 < used <= wall * 1.1 for turn in one + two for wall, used in turn)


@pytest.mark.slow
def test_job_that_fails_is_told_and_the_other_does_not_wait_for_it(tmp_path: Path) -> None:
    import step_job
    import step_time

    broken = step_job.in_turns("if number == 1: os._exit(3)")
    with pytest.raises(SystemExit, match="a job failed"):
        step_time.measure(tmp_path, 3, 1, broken, swapped=False, null=True)


def test_probe_costs_what_blocks_with_it_take_longer_than_their_neighbours_without() -> None:
    import step_cost

    def block(wanted: bool, step: float) -> tuple[bool, list[float], list[float]]:
        settling = [1.0] * step_cost.SETTLE
        return wanted, settling + [step] * 8, settling + [step / 2] * 8

    drifting = [block(True, 0.0105), block(False, 0.010), block(False, 0.012), block(True, 0.0125)]
    ((wall, used, plain),) = step_cost.rounds([*drifting, block(True, 9.0)])
    assert (round(wall, 6), round(used, 6), round(plain, 6)) == (0.0005, 0.00025, 0.011)


def test_parts_of_the_probe_are_told_without_those_that_torch_has_itself() -> None:
    import step_parts

    def block(wanted: bool, drift: int) -> tuple[bool, list[list[int]]]:
        parts = (
            (50_000, 24_000, 10_000, 15_000, 6_000, 9_000) if wanted else (45_000, 22_000, 3_000, 12_000, 3_000, 8_000)
        )
        return wanted, [[*parts, 10_000_000 + drift + (40_000 if wanted else 0)]] * step_parts.BLOCK

    blocks = [block(at % 4 in (0, 3), 1000 * at) for at in range(step_parts.BLOCKS)]
    ((parts, whole, step),) = step_parts.rounds([*blocks, block(True, 0)])
    assert [round(1e6 * part, 3) for part in parts] == [5, 2, 7, 15, 3, 1], "a job without the probe has no such hook"
    assert round(1e6 * whole) == 40
    assert round(step, 3) == 0.010
    assert round(1e6 * step_parts.sum_of_medians([parts] * 3).median, 3) == 33


@pytest.mark.slow
def test_parts_of_the_probe_are_measured_one_by_one() -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    shown = subprocess.run(
        [sys.executable, str(BENCHMARKS / "step_parts.py"), "--seconds=4", "--starts=1", "--layers=1", "--no-write"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    import step_parts

    lines = shown.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[1:-2]] == list(step_parts.PARTS)
    gradient, passed = (float(lines[at].split(": ")[1].split()[0]) for at in (4, 3))
    assert 1 < gradient < 200
    assert 1 < passed < 200


@pytest.mark.parametrize("name", ["imports", "overhead", "page", "stages", "step_cost", "step_parts", "step_time"])
def test_help_tells_the_options_without_measuring(name: str) -> None:
    shown = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "--no-write" in shown.stdout


def test_steps_of_turns_with_a_reader_are_compared_with_those_of_the_turn_beside_them() -> None:
    import page

    steps = [(at / 10, 0.02 if 20 <= at < 40 else 0.01) for at in range(100)]
    ratio, step_ms = page.compared([(2.0, 4.0), (6.0, 8.0)], [(0.0, 2.0), (4.0, 6.0)], steps)
    assert (ratio.low, ratio.high) == (1.0, 2.0)
    assert round(step_ms, 6) == 10.0
