"""A whole job in which one rank goes NaN: the verdict, the files, the replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope
from rankscope.train.forensics.dump import read_arrays

SMALL = (
    "data.source=random",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "model.kv_heads=2",
    "model.vocab_size=64",
    "model.context_length=16",
    "training.batch_size=2",
    "training.grad_accum_nums=2",
    "training.max_steps=10",
    "training.warmup_steps=2",
    "logging.plots=false",
    "system.device=cpu",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_goes_nan_is_named_with_module_and_samples_and_the_step_can_be_replayed(
    rankscope: Rankscope, tmp_path: Path
) -> None:
    command = (*COMMAND, "train", "--debug", "--strategy", "fsdp", "--fault", "nan@rank=1,step=3")
    overrides = [word for setting in SMALL for word in ("--override", setting)]
    started = rankscope.command(*command, *overrides, "--run-dir", tmp_path / "run")
    ended = started.wait(300)
    assert ended.code == 76, ended.lines()
    verdict = json.loads((tmp_path / "run/verdict.json").read_bytes())
    assert (verdict["outcome"], verdict["cause"]) == ("nan", "nan-loss")
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    assert verdict["culprits"][0]["where"]["file"].endswith("rankscope/train/model.py")
    shown = "\n".join(ended.lines())
    assert "R1:NaN LOSS DETECTED [CPU 1]" in shown
    assert "R1:First: the output of layers.1 (Block): 1,024 NaN and 0 Inf of 1,024 values" in shown
    assert "R1:Samples: 28, 29" in shown

    content = read_arrays(tmp_path / ".checkpoints/debug/nan_debug_step_3.pkl")
    assert content["gradients"].keys() == content["parameters"].keys()
    again = rankscope.command(*COMMAND, "train", "--replay-nan", ".checkpoints/nan_grad_step_3.pt")
    replayed = again.wait(120)
    assert replayed.code == 76
    assert "first module whose output is not finite: the output of layers.1 (Block)" in "\n".join(replayed.lines())
