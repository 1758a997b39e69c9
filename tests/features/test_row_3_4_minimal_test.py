"""The minimal test: environment, versions, init, device, all-reduce with its values, clean-up; one process or many."""

from __future__ import annotations

import sys

import pytest

from conftest import COMMAND, Rankscope

ROW = "3.4"
COMMAND_LINE = "rankscope check ddp"
DIFFERS = (
    "Every line has its rank in front, and steps are `STEP 1 of 6: environment`, because several ranks "
    "write at one time; all collectives are tried, not all-reduce alone."
)


@pytest.mark.slow
def test_six_steps_with_the_values_before_and_after(rankscope: Rankscope) -> None:
    env = {"CUDA_VISIBLE_DEVICES": ""}
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    ended = rankscope.command(*command, "-m", "rankscope.checks.ddp", env=env).wait(200, gone_within_s=20)
    assert ended.code == 0, ended.lines()
    shown = ended.out.decode()
    for rank in (0, 1):
        assert f"[rank {rank}]   Before all_reduce: tensor={rank}.0" in shown
        assert f"[rank {rank}]   After all_reduce: tensor=1.0, expected=1" in shown
        assert f"[rank {rank}]   All-reduce test PASSED" in shown
        for step in range(1, 7):
            assert f"[rank {rank}] STEP {step} of 6" in shown


@pytest.mark.slow
def test_one_process_is_the_baseline(rankscope: Rankscope) -> None:
    ended = rankscope.command(sys.executable, "-m", "rankscope.checks.ddp", env={"CUDA_VISIBLE_DEVICES": ""}).wait(120)
    assert ended.code == 0, ended.lines()
    checked = rankscope.command(*COMMAND, "check", "ddp", "--ranks", 2, env={"CUDA_VISIBLE_DEVICES": ""}).wait(200)
    assert checked.code == 0, checked.lines()
