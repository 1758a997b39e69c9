"""The notes' four known causes have their fixes: logger on all ranks, strategy, mkdir race, hub from all ranks."""

from __future__ import annotations

import pytest

import rankscope.report.words  # noqa: F401  loads all advice
from rankscope.diagnosis.rules.standing.stages import _FIXES
from rankscope.report.words.advice import advise

ROW = "0.8"
COMMAND_LINE = "rankscope run train.py"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("logger", ["rank 0", "WANDB_MODE"]),
        ("trainer", ["strategy='ddp'"]),
        ("directory", ["rank 0", "barrier"]),
        ("tokenizer", ["HF_HUB_OFFLINE"]),
    ],
)
def test_a_hang_in_that_stage_gets_the_fix_of_the_notes(kind: str, words: list[str]) -> None:
    told = " ".join(advise(each) for each in _FIXES[kind])
    assert [word for word in words if word not in told] == [], told
