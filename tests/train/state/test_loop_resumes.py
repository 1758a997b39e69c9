"""The real training loop on real ranks: stopped, killed in the middle of a save, resumed, with fewer ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ports import free_port
from rankscope.train.config import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    RunConfig,
    SystemConfig,
    TrainingConfig,
)
from rankscope.train.plan import RunPlan, write_plan
from rankscope.train.state import manifest as manifests
from rankscope.train.state import tensors
from rankscope.train.state.reading import read_tensors

PROGRAM = Path(__file__).with_name("loop_ranks.py")
STEPS = 20
SMALL = RunConfig(
    system=SystemConfig(device="cpu", threads=1),
    model=ModelConfig(layers=2, width=32, heads=2, vocab_size=64, context_length=16),
    training=TrainingConfig(batch_size=2, grad_accum_nums=2, max_steps=STEPS, warmup_steps=2, learning_rate=1e-2),
    data=DataConfig(source="random"),
    logging=LoggingConfig(plots=False),
)


def planned(folder: Path, strategy: str, *, every: int, resume: str = "no", accumulate: int = 2) -> Path:
    """A plan whose checkpoints go to the folder."""
    folder.mkdir(exist_ok=True)
    config = replace(
        SMALL,
        system=replace(SMALL.system, strategy=strategy),  # type: ignore[arg-type]
        training=replace(SMALL.training, grad_accum_nums=accumulate),
        checkpoint=CheckpointConfig(dir=str(folder / "checkpoints"), every=every, keep_last=9, resume=resume),
    )
    path = folder / f"plan-{resume}.json"
    write_plan(RunPlan(config, None, 64, str(folder), "CPU", progress_bar=False), path)
    return path


def started(plans: Sequence[Path], ranks: int, **variables: str) -> list[subprocess.Popen[str]]:
    words = [word for plan in plans for word in (str(plan), str(free_port()))]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def finished(plans: Sequence[Path], ranks: int) -> str:
    processes = started(plans, ranks)
    try:
        shown = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        end(processes)
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(shown)
    return shown[0]


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def state(folder: Path, step: int = STEPS) -> dict[str, Tensor]:
    """Weights and optimizer, as a checkpoint holds them."""
    checkpoint = folder / "checkpoints" / manifests.folder_name(step)
    found = manifests.read(checkpoint)
    assert isinstance(found, manifests.Found), found
    wanted = {f"model.{name}": tensors.empty(form) for name, form in found.manifest.parameters.items()}
    for name, forms in found.manifest.optimizer.items():
        wanted.update({f"optimizer.{name}.{key}": tensors.empty(form) for key, form in forms.items()})
    read_tensors(checkpoint, wanted)
    return wanted


def from_step_10(source: Path, folder: Path) -> Path:
    """The same run, as if it had ended after ten steps."""
    shutil.copytree(source / "checkpoints", folder / "checkpoints", symlinks=True)
    shutil.rmtree(folder / "checkpoints" / manifests.folder_name(STEPS))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = {strategy: tmp_path / strategy for strategy in ("ddp", "fsdp")}
    finished([planned(folder, strategy, every=10) for strategy, folder in whole.items()], ranks=2)

    killed = tmp_path / "killed"
    holding = started([planned(killed, "ddp", every=5)], ranks=2, HOLD_SAVE_OF="15")
    try:
        output = holding[0].stdout
        assert output is not None
        seen = next((line for line in output if line.startswith("held ")), None)  # in the middle of the save of step 15
        assert seen is not None
    finally:
        end(holding)
    assert [path.name for path in (killed / "checkpoints").glob(".partial-*")] == [".partial-step_00000015"]

    again = {strategy: from_step_10(folder, tmp_path / f"{strategy}-again") for strategy, folder in whole.items()}
    plans = [planned(folder, strategy, every=0, resume="auto") for strategy, folder in again.items()]
    shown = finished([*plans, planned(killed, "ddp", every=0, resume="auto")], ranks=2)
    assert shown.count("after 10 steps") == 3

    for one, other in ((whole["ddp"], again["ddp"]), (whole["fsdp"], again["fsdp"]), (whole["ddp"], killed)):
        expected, found = state(one), state(other)
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert not list((killed / "checkpoints").glob(".partial-*"))

    alone = from_step_10(whole["ddp"], tmp_path / "alone")
    shown = finished([planned(alone, "single", every=0, resume="auto", accumulate=4)], ranks=1)
    assert "it was saved by 2 ranks and this run has 1" in shown
    expected, found = state(whole["ddp"]), state(alone)
    assert all(torch.allclose(expected[name], found[name], rtol=1e-3, atol=1e-4) for name in expected)
    loaders = [
        json.loads((folder / "checkpoints/latest/manifest.json").read_text())["loader"]
        for folder in (alone, whole["ddp"])
    ]
    assert loaders[0]["samples"] == loaders[1]["samples"] == STEPS * 8
