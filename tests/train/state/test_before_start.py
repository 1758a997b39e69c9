"""Mistakes about checkpoints are found before any rank is started."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.errors import UsageError
from rankscope.train.config import CheckpointConfig, ModelConfig, RunConfig
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place
from rankscope.train.spread import build_model
from rankscope.train.state.before_start import check_checkpoints
from rankscope.train.state.checkpointer import Checkpointer


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Of a run that has left a checkpoint."""
    import torch

    model = ModelConfig(layers=2, width=32, heads=2, vocab_size=64, context_length=16, multi_token_heads=2)
    config = RunConfig(model=model, checkpoint=CheckpointConfig(dir=str(tmp_path / "checkpoints")))
    spread = build_model(config, Place(0, 0, 1, 1, torch.device("cpu")), "single", 64, torch.float32)
    checkpointer = Checkpointer(config.checkpoint, say=lambda _line: None)
    checkpointer.save(3, spread.model, make_optimizer(spread.model, config.training), None)
    checkpointer.wait()
    checkpointer.close()
    return replace(config, checkpoint=replace(config.checkpoint, resume="auto"))


def test_the_model_that_saved_it_may_go_on(config: RunConfig) -> None:
    check_checkpoints(config, 64)


def test_another_model_is_refused_unless_it_starts_afresh(config: RunConfig) -> None:
    other = replace(config, model=replace(config.model, width=64))
    with pytest.raises(UsageError, match=r"step_00000003 is a checkpoint of another model: tok_embed\.weight is 64x32"):
        check_checkpoints(other, 64)
    check_checkpoints(replace(other, checkpoint=replace(other.checkpoint, resume="no")), 64)


def test_a_checkpoint_that_is_not_there_is_refused(config: RunConfig, tmp_path: Path) -> None:
    asked = replace(config, checkpoint=replace(config.checkpoint, resume=str(tmp_path / "gone")))
    with pytest.raises(UsageError, match="gone is not a complete checkpoint: there is no such folder"):
        check_checkpoints(asked, 64)


def test_a_directory_that_cannot_be_written_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    elsewhere = replace(config, checkpoint=replace(config.checkpoint, dir=str(tmp_path / "file" / "checkpoints")))
    with pytest.raises(UsageError, match=r"checkpoint\.dir .* cannot be written: Not a directory"):
        check_checkpoints(elsewhere, 64)


def test_a_disk_that_cannot_hold_one_checkpoint_is_refused(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = replace(config, checkpoint=CheckpointConfig(dir=str(tmp_path / "not/yet/there")))
    check_checkpoints(fresh, 64)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(UsageError, match=r"has 0\.0 MB free, and one checkpoint of this model takes 0\.\d MB"):
        check_checkpoints(fresh, 64)
