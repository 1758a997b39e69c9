"""What other trainers call a setting: names that mean one of ours are taken for it, the rest are only hinted at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope.errors import UsageError
from rankscope.train.settings.files import Entry

HINTS = {
    "grad_accum": "training.grad_accum_nums",
    "gradient_accumulation": "training.grad_accum_nums",
    "lr": "training.learning_rate",
    "max_lr": "training.learning_rate",
    "min_lr": "training.min_learning_rate",
    "steps": "training.max_steps",
    "block_size": "model.context_length",
    "seq_len": "model.context_length",
    "max_seq_len": "model.context_length",
    "n_layer": "model.layers",
    "num_layers": "model.layers",
    "n_head": "model.heads",
    "num_heads": "model.heads",
    "n_embd": "model.width",
    "hidden_size": "model.width",
    "dim": "model.width",
    "intermediate_size": "model.ffn",
    "clip_grad": "training.max_grad_norm",
    "grad_clip": "training.max_grad_norm",
    "dtype": "training.precision",
    "mixed_precision": "training.use_amp",
    "activation_checkpointing": "model.gradient_checkpointing",
    "num_samples": "data_sampling.n_samples",
}
"""By the last part of the name: said where the whole name means nothing here."""

_PRECISIONS = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    **{name: name for name in ("auto", "bf16", "fp16", "fp32")},
}
_SHARDING = {"FULL_SHARD": "fsdp", "HYBRID_SHARD": "hsdp", "NO_SHARD": "ddp"}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name of another trainer means here."""

    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Their values → ours; empty where they are the same."""


TAKEN: dict[str, Meaning] = {
    "training.gradient_accumulation_steps": Meaning("training.grad_accum_nums"),
    "models.policy.dtype": Meaning("training.precision", _PRECISIONS),
    "model.dtype": Meaning("training.precision", _PRECISIONS),
    "distributed.fsdp.mixed_precision": Meaning("training.use_amp"),
    "fsdp.mixed_precision": Meaning("training.use_amp"),
    "distributed.fsdp.sharding_strategy": Meaning("system.strategy", _SHARDING),
    "fsdp.sharding_strategy": Meaning("system.strategy", _SHARDING),
    "training.context_length": Meaning("model.context_length"),
    "training.init_std": Meaning("model.init_std"),
}
_ORIGINAL_PARAMETERS = frozenset({"distributed.fsdp.use_orig_params", "fsdp.use_orig_params"})


def meant(entry: Entry) -> Entry | None:
    """The entry under its name here; None where it asks for what is so anyway. Raises UsageError for what cannot be."""
    if entry.key in _ORIGINAL_PARAMETERS:
        _need_true(entry)
        return None
    meaning = TAKEN.get(entry.key)
    if meaning is None:
        return entry
    return replace(entry, key=meaning.key, value=_translated(entry, meaning))


def _translated(entry: Entry, meaning: Meaning) -> Any:
    if not meaning.values or not isinstance(entry.value, str):
        return entry.value
    found = meaning.values.get(entry.value.strip()) or meaning.values.get(entry.value.strip().removeprefix("torch."))
    if found is None:
        raise UsageError(
            f"{entry.place}: {entry.key} is {meaning.key} here, and '{entry.value}' is none of its values: "
            f"write {meaning.key}={' or '.join(dict.fromkeys(meaning.values.values()))}"
        )
    return found


def _need_true(entry: Entry) -> None:
    if str(entry.value).strip().lower() not in ("true", "1", "yes", "on"):
        raise UsageError(
            f"{entry.place}: {entry.key}={str(entry.value).lower()} is not possible: fully_shard always keeps the "
            "original parameters; leave it out"
        )
