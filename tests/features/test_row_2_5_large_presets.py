"""14b and 32b: built on the meta device, the memory of 1, 4 and 8 GPUs told, and a few steps made, shrunk."""

from __future__ import annotations

import json

import pytest
import torch
from notes import train, without_gpus

from conftest import COMMAND, Rankscope
from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.launch.beforehand import gpus_by_variable
from rankscope.train.config import embedding_rows, parameter_count
from rankscope.train.memory_plan import build_on_meta, need, smallest
from rankscope.train.settings import load_config

ROW = "2.5"
COMMAND_LINE = "rankscope train --preset 32b --plan"
DIFFERS = (
    "`start.sh 32b` is `rankscope train --preset 32b`; on as many GPUs as there are, by "
    "`--nproc-per-node` or NUM_GPUS. FSDP in place of DDP: a model of 14 billion parameters with its "
    "optimizer fits no GPU whole."
)
SHRUNK = (
    *(
        "model.layers=2",
        "model.width=160",
        "model.heads=10",
        "model.kv_heads=2",
        "model.ffn=320",
        "model.vocab_size=512",
    ),
    *("model.context_length=64", "training.grad_accum_nums=2", "data.source=random", "checkpoint.every=0"),
)


@pytest.mark.parametrize(("preset", "billions"), [("14b", 14.8), ("32b", 32.8)])
def test_the_preset_builds_with_as_many_parameters_as_its_name_says(preset: str, billions: float) -> None:
    config = load_config(preset, None, []).config
    rows = embedding_rows(config.model, 32768)
    size = build_on_meta(config, rows)
    assert size.parameters == parameter_count(config.model, rows)
    assert size.parameters / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(
    ("preset", "gpus", "fits"), [("14b", 8, 80), ("14b", 4, 80), ("32b", 8, 141), ("14b", 1, None), ("32b", 4, None)]
)
def test_what_fits_where(preset: str, gpus: int, fits: int | None) -> None:
    config = load_config(preset, None, []).config
    size = build_on_meta(config, 152064)
    assert smallest(config, size, 152064, "single" if gpus == 1 else "fsdp", gpus) == fits


def test_gradients_of_a_sharded_model_do_not_wait_whole_on_every_gpu() -> None:
    config = load_config("32b", None, []).config
    size = build_on_meta(config, 152064)
    asked = need(config, size, 152064, "fsdp", 8, 80 * 10**9)
    assert asked.total < asked.state + 25 * 10**9, "one more copy of all gradients would take 131 GB"


@pytest.mark.parametrize("preset", ["14b", "32b"])
def test_the_plan_is_printed(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", preset, "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "built on the meta device" in shown
    for word in ("1 GPU", "4 GPUs", "8 GPUs", "ddp", "fsdp", "hsdp"):
        assert word in shown


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["14b", "32b"])
def test_a_few_steps_shrunk(rankscope: Rankscope, preset: str) -> None:
    words = [word for each in SHRUNK for word in ("--override", each)]
    ended = train(rankscope, "--preset", preset, "--max-steps", 3, *words, env=without_gpus())
    assert ended.code == 0, ended.err.decode()
    assert "Step [2/3]" in ended.out.decode()
    assert "strategy fsdp on 2 ranks" in ended.out.decode()


def test_the_number_of_ranks_by_variable() -> None:
    assert gpus_by_variable("2") == 2
    for wrong in ("two", "0", "-1"):
        with pytest.raises(UsageError, match="NUM_GPUS"):
            gpus_by_variable(wrong)


@pytest.mark.slow
def test_variables_of_the_notes_are_honoured(rankscope: Rankscope) -> None:
    script = rankscope.script("import os\nimport msgspec\nprint('of', os.environ['WORLD_SIZE'])")
    env = {"NUM_GPUS": "3", "RUN_IMPORT_TEST": "1", "RUN_SINGLE_GPU_TEST": "1"}
    ended = rankscope.command(*COMMAND, "run", "--run-dir", rankscope.folder / "run", script, env=env).wait(200)
    assert ended.code == 0, ended.err.decode()
    assert ended.out.decode() == "R0-2:of 3\n"
    assert "before the start" in ended.err.decode()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_plan_is_near_what_a_gpu_needs(rankscope: Rankscope) -> None:
    config = load_config("gpt2-1.5b", None, ["training.grad_accum_nums=2", "training.max_steps=3"]).config
    size = build_on_meta(config, config.model.vocab_size or 0)
    planned = need(config, size, config.model.vocab_size or 0, "single", 1, 141 * 10**9).total
    words = ("--override", "training.grad_accum_nums=2", "--override", "data.source=random", "--strategy", "single")
    off = (
        "--override",
        "model.products=torch",
        "--override",
        "checkpoint.at_end=false",
        "--override",
        "checkpoint.every=0",
    )
    ended = train(rankscope, "--preset", "gpt2-1.5b", "--max-steps", 3, *words, *off, timeout_s=400)
    assert ended.code == 0, ended.err.decode()
    lines = (ended.run_dir / "logs" / "metrics.jsonl").read_text().splitlines()
    used = max(json.loads(line)["gpu_memory_bytes"] for line in lines)
    assert 0.75 * used < planned < 1.35 * used, (used, planned)
