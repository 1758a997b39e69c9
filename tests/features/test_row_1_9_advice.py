"""Advice on NaN names the notes' settings and the preset `stable`; memory and processes have theirs."""

from __future__ import annotations

import pytest
from notes import nan_training

import rankscope.report.words  # noqa: F401  loads all advice
from conftest import Ended
from rankscope.diagnosis.rules.numbers.non_finite import _FIXES
from rankscope.report.words.advice import ADVICE, advise
from rankscope.train.settings import load_config

__all__ = ["nan_training"]
ROW = "1.9"
COMMAND_LINE = "rankscope train --preset stable"
DIFFERS = (
    "The notes' `config_stable.json` is the preset `stable`. A smaller `max_grad_norm` is the advice for "
    "exploding gradients, as there."
)
SETTINGS = ("learning_rate", "init_std", "max_grad_norm", "use_amp", "--preset stable")


@pytest.mark.parametrize("kind", ["loss", "gradient", "parameter"])
def test_every_nan_verdict_names_the_settings(kind: str) -> None:
    told = " ".join(advise(each) for each in _FIXES[kind])  # type: ignore[index]
    assert [name for name in SETTINGS if name not in told] == []


def test_stable_is_production_made_careful() -> None:
    stable, production = load_config("stable", None, []).config, load_config("production", None, []).config
    assert stable.model.layers == production.model.layers
    assert stable.training.learning_rate < production.training.learning_rate
    assert stable.model.init_std < production.model.init_std
    assert stable.training.max_grad_norm < production.training.max_grad_norm
    assert not stable.training.use_amp
    assert stable.model.gradient_checkpointing


def test_memory_advice_names_smaller_batches() -> None:
    assert "batch" in ADVICE["use-less-gpu-memory"]


@pytest.mark.slow
def test_a_real_nan_run_says_so(nan_training: Ended) -> None:
    fix = " ".join(nan_training.verdict["fix"])
    assert [name for name in SETTINGS if name not in fix] == []
