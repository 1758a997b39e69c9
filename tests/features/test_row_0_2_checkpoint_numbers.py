"""The twelve checkpoints of a Lightning and W&B script have one number each, whatever rank 0 does more."""

from __future__ import annotations

import pytest
from notes import nan_training, numbers, stages

from conftest import Ended, Rankscope
from rankscope.evidence.model import Stage
from rankscope.evidence.stage_numbers import SharedNumbers, numbered
from shared_runs import lightning_run
from test_examples import TWELVE

__all__ = ["lightning_run", "nan_training"]
ROW = "0.2"
COMMAND_LINE = "rankscope run --stages on examples/lightning_wandb.py"
DIFFERS = (
    "Stages that the notes do not number, such as the run of W&B, the first backward pass and "
    'checkpoints, have numbers too, in the order in which they come: "Training finished" is then later '
    "than 12, and the same on every rank. None is marked as prime suspect: the verdict names the one that"
    " stands."
)
ONLY_RANK_0_MAKES_A_FOLDER = """
import os
import rankscope
if os.environ["RANK"] == "0":
    os.makedirs("logs_of_rank_0", exist_ok=True)
    rankscope.stage("Report opened")
rankscope.stage("Model created")
rankscope.stage("Data ready")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_twelve_checkpoints_have_one_number_each_though_rank_0_alone_makes_a_run_of_wandb(
    lightning_run: Ended,
) -> None:
    assert lightning_run.code == 0, lightning_run.err.decode()
    found = numbers(lightning_run)
    for number, words in enumerate(TWELVE[:11], 1):
        assert found[words] == {0: [number], 1: [number]}, (words, found[words])
    assert set(found["wandb run ready"]) == {0}
    assert found["Training finished"][0] == found["Training finished"][1]


@pytest.mark.slow
def test_what_one_rank_does_more_does_not_shift_the_others(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", rankscope.script(ONLY_RANK_0_MAKES_A_FOLDER))
    found = numbers(ended)
    assert set(found["Report opened"]) == {0}
    assert found["Model created"][0] == found["Model created"][1]
    assert found["Data ready"][0] == found["Data ready"][1]


@pytest.mark.slow
def test_training_finished_is_not_said_of_a_run_that_ended_in_nan(nan_training: Ended) -> None:
    assert nan_training.code == 76, nan_training.err.decode()
    assert "Training finished" not in stages(nan_training)
    assert "First optimizer step done" in stages(nan_training)


def stage(words: str, left_at: float) -> Stage:
    return Stage(
        index=0,
        label=words,
        words=words,
        kind="",
        note="",
        entered_at=0.0,
        left_at=left_at,
        number=1,
        failed=False,
        announced=False,
        always=False,
        thread=1,
        memory_before=0,
        memory_after=0,
        gpu_before=0,
        gpu_after=0,
    )


def test_a_repeated_stage_has_a_number_for_each_time() -> None:
    mine = [stage("saved", 1.0), stage("tested", 2.0), stage("saved", 3.0)]
    theirs = [stage("tested", 4.0), stage("saved", 5.0), stage("saved", 6.0)]
    found = numbered({0: mine, 1: theirs}, SharedNumbers(2))
    assert [each.number for each in found[0]] == [1, 2, 3]
    assert [each.number for each in found[1]] == [2, 1, 3]
