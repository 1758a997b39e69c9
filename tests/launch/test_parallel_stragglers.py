"""A rank that the others wait for is named in every kind of parallelism, on the way forward and on the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("parallel_kinds.py")
KINDS = ("sharded", "tensor", "pipeline")
ALWAYS = {("sharded", "backward"), ("tensor", "forward"), ("pipeline", "backward")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One pass of each kind each time; both with `--whole-zoo`."""
    if "when" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--whole-zoo")
    chosen = [(kind, when) for kind in KINDS for when in ("forward", "backward") if whole or (kind, when) in ALWAYS]
    # Only in a pipeline are the ranks not alike: there each of them is slow once.
    cases = [(*each, slow) for each in chosen for slow in ((0, 1) if each[0] == "pipeline" else (1,))]
    metafunc.parametrize(("kind", "when", "slow"), cases)


def test_slow_rank_is_named_and_nobody_else(rankscope: Rankscope, kind: str, when: str, slow: int) -> None:
    env = {"KIND": kind, "SLOW": f"{slow}:{when}", "OMP_NUM_THREADS": "1"}
    ended = rankscope.run(PROGRAM, env=env)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["culprits"]) == (0, "ok", [])
    assert [each["rank"] for each in verdict["stragglers"]] == [slow], (verdict["stragglers"], ended.err.decode())
    [found] = verdict["stragglers"]
    # Where a forward pass begins is known of DistributedDataParallel alone.
    assert found["phase"] in (("forward/backward",) if when == "backward" else ("forward/backward", "other"))
    assert found["share"] > 0.3


def test_even_ranks_of_a_pipeline_are_left_alone(rankscope: Rankscope) -> None:
    env = {"KIND": "pipeline", "SLOW": "9:forward", "OMP_NUM_THREADS": "1"}
    ended = rankscope.run(PROGRAM, env=env)
    assert (ended.code, ended.verdict["outcome"], ended.verdict["stragglers"]) == (0, "ok", [])
