"""Environment, CUDA and backend status, at the start and again before and after the trainer is made."""

from __future__ import annotations

import pytest
from notes import stages

from conftest import Ended, Rankscope
from shared_runs import lightning_try

__all__ = ["lightning_try"]

ROW = "0.4"
COMMAND_LINE = "rankscope run --stages on examples/lightning_wandb.py"
DIFFERS = (
    "What is the same on all ranks is told once for the job, and differences for each rank: eight ranks "
    "would write the same forty variables eight times. Each rank's own are in the run's folder. Secrets "
    "are masked."
)
SHORT = "print('done')"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_status_is_told_at_the_start_and_around_the_trainer(lightning_try: Ended) -> None:
    shown, told = lightning_try.err.decode(), stages(lightning_try)
    assert lightning_try.code == 0, shown
    assert "WANDB_PROJECT=rows" in shown
    assert "HF_HOME=/nowhere" in shown
    assert "a-secret-that-must-not-be-told" not in shown + told
    for rank in (0, 1):
        own = [line for line in told.splitlines() if f"[R{rank}/2]" in line and "] Status " in line]
        assert len(own) == 2, own
        assert "Status before the trainer is made: CUDA" in own[0]
        assert "no process group" in own[0]
        assert "WANDB_MODE=offline" in own[0]
        assert "Status after the trainer was made: CUDA" in own[1]


@pytest.mark.slow
def test_variables_of_a_script_that_ends_at_once_are_told_too(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", rankscope.script(SHORT), env={"WANDB_PROJECT": "rows", "HF_HOME": "/x"})
    shown = ended.err.decode()
    assert "WANDB_PROJECT=rows" in shown
    assert "HF_HOME=/x" in shown
