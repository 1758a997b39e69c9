"""What throughput.py measures: the models with their best settings, what was expected of them, and changes to them."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rankscope.train.config import ModelConfig, RunConfig, SystemConfig, TrainingConfig

ROWS = 50304

MODELS: dict[str, RunConfig] = {
    "gpt2-124m": RunConfig(
        model=ModelConfig(layers=12, width=768, heads=12, context_length=1024, vocab_size=ROWS),
        training=TrainingConfig(batch_size=256, grad_accum_nums=2, loss_chunk_tokens=32768),
    ),
    "gpt2-1.5b": RunConfig(
        model=ModelConfig(layers=48, width=1600, heads=25, context_length=1024, vocab_size=ROWS, compile="whole"),
        training=TrainingConfig(batch_size=32, grad_accum_nums=16, loss_chunk_tokens=16384),
    ),
    "llama-8b": RunConfig(
        system=SystemConfig(strategy="fsdp"),
        model=ModelConfig(
            layers=32,
            width=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            context_length=8192,
            vocab_size=128256,
            tied_embeddings=False,
            rope_theta=500000.0,
            gradient_checkpointing=True,
        ),
        training=TrainingConfig(batch_size=1, grad_accum_nums=4),
    ),
    "tiny": RunConfig(
        model=ModelConfig(layers=2, width=64, heads=4, context_length=64, vocab_size=512, compile="off"),
        training=TrainingConfig(batch_size=4, grad_accum_nums=2),
    ),
}

EXPECTED: dict[str, str] = {
    "gpt2-124m": "52 % (50 to 54) before the first measurement. Per token: products 742 MFLOP at about 650 TFLOP/s "
    "1.14 ns, attention 0.19 ns, element-wise work 1.1 MB at 3.8 TB/s 0.30 ns, optimizer and exchange 1.5 %; 1.66 ns "
    "in all, 603,000 tokens/s.",
    "gpt2-1.5b": "57 % (55 to 59) before the first measurement. Per token: products 9.36 GFLOP at about 660 TFLOP/s "
    "14.2 ns, attention 1.6 ns, element-wise work 7.3 MB at 3.8 TB/s 1.9 ns, optimizer and gradients 0.4 ns; 18.1 ns "
    "in all, 55,000 tokens/s.",
    "llama-8b": "38 % before the first measurement: products at about 680 TFLOP/s would give 60 %, blocks computed "
    "again in the backward pass cost a quarter of that, and copies of FSDP on one rank some more.",
    "tiny": "not for measuring: shows that the script works where there is no GPU.",
}

SWEEP: dict[str, tuple[str, ...]] = {
    "gpt2-124m": (
        "",
        "model.products=torch",
        "copies=off",
        "model.attention=flash",
        "model.compile=blocks",
        "training.loss_chunk_tokens=8192",
        "training.loss_chunk_tokens=16384",
        "training.batch_size=64,training.grad_accum_nums=8",
        "training.batch_size=128,training.grad_accum_nums=4",
        "model.products=torch,model.max_autotune=True",
    ),
    "gpt2-1.5b": (
        "",
        "model.products=torch",
        "copies=off",
        "training.batch_size=16",
        "training.batch_size=24",
        "training.loss_chunk_tokens=8192",
        "model.attention=flash",
    ),
    "llama-8b": ("", "training.batch_size=2,model.context_length=4096"),
    "tiny": ("", "training.batch_size=8"),
}


def changed(config: RunConfig, changes: str) -> tuple[RunConfig, bool]:
    """`a.b=c,d.e=f` applied; `copies=off` is not a setting of a run but of the way it computes."""
    copies = True
    for key, value in named_values(changes):
        section, _, field = key.partition(".")
        if key == "copies":
            copies = value != "off"
        elif section != "inductor":
            config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config, copies


def named_values(changes: str) -> Iterator[tuple[str, Any]]:
    for change in filter(None, changes.split(",")):
        key, _, text = change.partition("=")
        try:
            yield key, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            yield key, text


@contextlib.contextmanager
def compiler_options(changes: str) -> Iterator[None]:
    """`inductor.a.b=c` among the changes: an option of torch's compiler, for as long as this lasts."""
    import torch._inductor.config as options

    before: list[tuple[Any, str, Any]] = []
    for key, value in named_values(changes):
        if key.startswith("inductor."):
            *path, last = key.removeprefix("inductor.").split(".")
            holder: Any = options
            for part in path:
                holder = getattr(holder, part)
            before.append((holder, last, getattr(holder, last)))
            setattr(holder, last, value)
    try:
        yield
    finally:
        for holder, last, value in reversed(before):
            setattr(holder, last, value)
