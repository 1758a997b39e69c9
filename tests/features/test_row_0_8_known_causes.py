"""The notes' four known causes have their fixes: logger on all ranks, strategy, mkdir race, hub from all ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rankscope.report.words  # noqa: F401  loads all advice
from rankscope.diagnosis.rules.standing.stages import _FIXES
from rankscope.report.conclude import conclude
from rankscope.report.words.advice import advise

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

from recorded_incidents import recorded

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


@pytest.mark.parametrize(
    ("job", "cause", "words"),
    [
        ("tracked_runs", "blocked-call", ["the logger on rank 0 only", "WANDB_MODE=disabled"]),
        ("run_folder", "path-race", ["create it on one rank", "barrier", "exist_ok=True"]),
        ("hub_weights", "exception", ["download once before the job", "HF_HUB_OFFLINE=1"]),
    ],
)
def test_a_recorded_job_that_failed_of_it_gets_that_fix(job: str, cause: str, words: list[str]) -> None:
    verdict = conclude(recorded(f"gloo/{job}"))
    assert verdict.cause == cause, verdict.headline
    told = " ".join(verdict.fix)
    assert [word for word in words if word not in told] == [], told
