"""YAML, and `--override training.batch_size=4`, also under the names that the notes' trainer has."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.train.settings import load_config

ROW = "4.5"
COMMAND_LINE = "rankscope train --config baseline.yaml --override training.batch_size=4"
YAML = """
models:
  policy:
    dtype: float32
distributed:
  fsdp:
    mixed_precision: false
    sharding_strategy: FULL_SHARD
    use_orig_params: true
training:
  gradient_accumulation_steps: 8
"""


def test_names_of_the_notes_are_taken_for_ours(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "baseline.yaml"
    path.write_text(YAML)
    overrides = ["training.batch_size=4", "training.gradient_accumulation_steps=4"]
    loaded = load_config("production", path, overrides)
    config = loaded.config
    assert (config.training.batch_size, config.training.grad_accum_nums) == (4, 4)
    assert (config.training.precision, config.training.use_amp, config.system.strategy) == ("fp32", False, "fsdp")
    assert loaded.origin["training.use_amp"] == f"{path}:7"
    assert loaded.origin["training.grad_accum_nums"] == "--override"


@pytest.mark.parametrize(
    ("override", "precision"), [("float16", "fp16"), ("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("fp32", "fp32")]
)
def test_dtypes_are_translated(override: str, precision: str) -> None:
    assert load_config("debug", None, [f"models.policy.dtype={override}"]).config.training.precision == precision


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("fsdp.use_orig_params=false", "fully_shard always keeps the original parameters"),
        ("models.policy.dtype=int8", "write training.precision=fp32 or fp16 or bf16"),
        ("fsdp.sharding_strategy=SHARD_GRAD_OP", "write system.strategy=fsdp or hsdp or ddp"),
        ("distributed.fsdp.mixed_precision=maybe", "training.use_amp must be true or false"),
        ("models.policy.lr=1", "did you mean 'training.learning_rate'?"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_to_use(override: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_config("debug", None, [override])
    assert words in str(refused.value)
    assert main(["train", "--debug", "--override", override, "--show-config"]) == 2
