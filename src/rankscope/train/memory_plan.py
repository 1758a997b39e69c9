"""`rankscope train --plan`: does it fit? The model built on the meta device, and the memory of a GPU for each strategy.

What is kept for the whole run is counted to the byte. What lives during a step is estimated from the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rankscope.train.config import RunConfig, embedding_rows, ffn_width, kv_heads
from rankscope.train.loss import chunk_tokens
from rankscope.train.model import Decoder
from rankscope.train.place import Spread
from rankscope.train.spread import sums_each_batch

COUNTS = (1, 4, 8)
SIZES_GB = (24, 40, 80, 141)
"""Memory of usual GPUs, in the makers' gigabytes."""
_OVERHEAD = 2 << 30
"""CUDA's context, NCCL's buffers, the allocator's gaps."""
_FP32 = 4
_STATE = 4 * _FP32
"""Weights, gradients and two moments."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model as it was built."""

    parameters: int
    largest_block: int
    """Parameters that FSDP gathers at one time: of a block, or of embedding and output."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes on one GPU."""

    state: int
    copies: int
    """Gathered blocks, compute copies, gradients that are not reduced yet."""
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.state + self.copies + self.activations + self.logits + _OVERHEAD


def build_on_meta(config: RunConfig, rows: int) -> Size:
    """Every parameter with its shape, and no memory."""
    with torch.device("meta"):
        model = Decoder(config.model, rows, torch.bfloat16, 1)
    blocks = [sum(each.numel() for each in block.parameters()) for block in model.blocks()]
    total = sum(each.numel() for each in model.parameters())
    return Size(total, max(*blocks, total - sum(blocks)))


def need(config: RunConfig, size: Size, rows: int, spread: Spread, ranks: int, memory: int) -> Need:
    """What a rank of `ranks` needs on a GPU with so much memory; `ranks` are those of one node."""
    width = 2 if config.training.use_amp and config.training.precision != "fp32" else _FP32
    shards = 1 if spread in ("single", "ddp") else (config.system.shard_size or ranks) if spread == "hsdp" else ranks
    parameters = size.parameters
    state = -(-parameters * _STATE // shards)
    if spread == "single":
        copies = parameters * width if width < _FP32 else 0
    elif spread == "ddp":
        copies = 0  # gradients are views of the buckets, and casts are those of one block
    else:
        # The block that computes and the one that is fetched ahead, and the gradients of the one before.
        copies = 2 * size.largest_block * width + size.largest_block * _FP32
        if config.training.grad_accum_nums > 1 and not sums_each_batch(parameters, memory):
            copies += parameters * _FP32
    return Need(state, copies, _activations(config, width), _logits(config, rows, width))


def _activations(config: RunConfig, width: int) -> int:
    model, tokens = config.model, config.training.batch_size * config.model.context_length
    layers = model.layers + model.multi_token_heads - 1
    keys = model.width // model.heads * kv_heads(model)
    block = tokens * (8 * model.width + 2 * keys + 3 * ffn_width(model)) * width
    kept = layers * tokens * model.width * width if model.gradient_checkpointing else (layers - 1) * block
    return kept + block


def _logits(config: RunConfig, rows: int, width: int) -> int:
    """One chunk, its gradient in place, and the sum of the output matrix' gradient in fp32."""
    tokens = config.training.batch_size * config.model.context_length
    return min(tokens, chunk_tokens(rows, config.training.loss_chunk_tokens)) * rows * (width + _FP32)


def plan_text(config: RunConfig, tokenizer_size: int) -> str:
    """A table for people."""
    rows = embedding_rows(config.model, tokenizer_size)
    size = build_on_meta(config, rows)
    model, training = config.model, config.training
    lines = [
        f"model: {size.parameters:,} parameters, {model.layers} layers, width {model.width}, {rows:,} rows of the "
        "embedding; built on the meta device",
        f"a step of one rank: {training.batch_size} x {model.context_length} tokens, {training.grad_accum_nums} times; "
        f"gradient checkpointing {'on' if model.gradient_checkpointing else 'off'}",
        f"state of the whole model: {size.parameters * _STATE / 1e9:.0f} GB (weights, gradients, two moments in fp32)",
        "",
        "memory of each GPU in GB (state + the rest), and the smallest GPU of "
        f"{', '.join(map(str, SIZES_GB))} GB that holds it:",
        f"  {'strategy':<10}" + "".join(f"{_gpus(count):>26}" for count in COUNTS),
    ]
    for strategy in ("ddp", "fsdp", "hsdp"):
        cells = [_cell(config, size, rows, strategy, count) for count in COUNTS]
        lines.append(f"  {strategy:<10}" + "".join(f"{cell:>26}" for cell in cells))
    lines.append("")
    lines.append("on one GPU every strategy is 'single'. Beyond the state these are estimates: leave a tenth of room")
    return "\n".join(lines) + "\n"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _cell(config: RunConfig, size: Size, rows: int, strategy: str, count: int) -> str:
    spread: Spread = "single" if count == 1 else strategy  # type: ignore[assignment]
    if spread == "hsdp" and count % (config.system.shard_size or count):
        return "-"
    found = smallest(config, size, rows, spread, count)
    asked = need(config, size, rows, spread, count, (found or SIZES_GB[-1]) * 10**9)
    rest = asked.total - asked.state
    return f"{asked.state / 1e9:.1f} + {rest / 1e9:.1f}: {f'{found} GB' if found else 'none'}"


def smallest(config: RunConfig, size: Size, rows: int, spread: Spread, count: int) -> int | None:
    """The smallest usual GPU that holds a rank; None where none does."""
    for gigabytes in SIZES_GB:
        if need(config, size, rows, spread, count, gigabytes * 10**9).total <= gigabytes * 10**9:
            return gigabytes
    return None
