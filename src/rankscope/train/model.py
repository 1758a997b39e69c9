"""The decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, and heads for one or several tokens."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from rankscope.train.config import ModelConfig, ffn_width, kv_heads
from rankscope.train.loss import linear_cross_entropy
from rankscope.train.norm import forked_norm, rms_norm
from rankscope.train.products import linear, plain_products
from rankscope.train.rotary import rotary_tables, with_positions
from rankscope.train.swiglu import swiglu


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arithmetic of a block needs to know beside its tensors."""

    head_size: int
    heads: int
    kv_heads: int
    eps: float


BlockMath = Callable[..., Tensor]


def joined(weights: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Several matrices that multiply the same input, as one: one large product is faster than three small ones."""
    if len(weights) == 1:
        return weights[0].to(dtype)
    return torch.cat([weight.to(dtype) for weight in weights])


def attention_math(
    x: Tensor, cosine: Tensor, sine: Tensor, inputs: tuple[Tensor, ...], output: Tensor, shape: Shape
) -> Tensor:
    """Causal attention over normed `x`; `inputs` are the query, key and value matrices, or all three in one."""
    batch, tokens, _ = x.shape
    mixed = linear(x, joined(inputs, x.dtype)).view(batch, tokens, shape.heads + 2 * shape.kv_heads, shape.head_size)
    query, key, value = with_positions(mixed, cosine, sine, shape.heads)
    grouped = shape.kv_heads != shape.heads
    if grouped and x.device.type == "cpu":  # the CPU's fused kernel knows no groups
        repeats = shape.heads // shape.kv_heads
        key, value = key.repeat_interleave(repeats, dim=2), value.repeat_interleave(repeats, dim=2)
        grouped = False
    mixed = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=grouped
    )
    return linear(mixed.transpose(1, 2).reshape(batch, tokens, -1), output.to(x.dtype))


def feed_forward_math(x: Tensor, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """SwiGLU over normed `x`; `inputs` are the gate's and the value's matrices, or both in one."""
    if len(inputs) == 2 and inputs[0].dtype == x.dtype:  # nothing has to be cast, so nothing is gained by joining them
        gate, value = (linear(x, weight) for weight in inputs)
        return linear(F.silu(gate) * value, output)
    return linear(swiglu(linear(x, joined(inputs, x.dtype))), output.to(x.dtype))


def block_math(
    x: Tensor,
    cosine: Tensor,
    sine: Tensor,
    attention_norm: Tensor,
    attention_inputs: tuple[Tensor, ...],
    attention_output: Tensor,
    ffn_norm: Tensor,
    ffn_inputs: tuple[Tensor, ...],
    ffn_output: Tensor,
    shape: Shape,
) -> Tensor:
    """A block as a function of its tensors alone, so that it is compiled once for all blocks."""
    x, normed = forked_norm(x, attention_norm, shape.eps)
    x = x + attention_math(normed, cosine, sine, attention_inputs, attention_output, shape)
    x, normed = forked_norm(x, ffn_norm, shape.eps)
    return x + feed_forward_math(normed, ffn_inputs, ffn_output)


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.math: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
        """Or its compiled form."""

    def forward(self, x: Tensor) -> Tensor:
        return self.math(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, width: int, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.wq = nn.Linear(width, shape.heads * shape.head_size, bias=False)
        self.wk = nn.Linear(width, shape.kv_heads * shape.head_size, bias=False)
        self.wv = nn.Linear(width, shape.kv_heads * shape.head_size, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_size, width, bias=False)

    def inputs(self) -> tuple[Tensor, ...]:
        return (self.wq.weight, self.wk.weight, self.wv.weight)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return attention_math(x, cosine, sine, self.inputs(), self.wo.weight, self.shape)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def inputs(self) -> tuple[Tensor, ...]:
        return (self.gate.weight, self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return feed_forward_math(x, self.inputs(), self.down.weight)


@dataclass(slots=True)
class BlockCopies:
    """A block's matrices in the type they are multiplied in; see compute_copies.py."""

    attention_inputs: Tensor
    attention_output: Tensor
    ffn_inputs: Tensor
    ffn_output: Tensor


class Block(nn.Module):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attention_norm = Norm(config.width, config.norm_eps)
        self.attention = Attention(config.width, shape)
        self.ffn_norm = Norm(config.width, config.norm_eps)
        self.feed_forward = FeedForward(config.width, ffn_width(config))
        self.math: BlockMath | None = None
        """`block_math` or its compiled form; None: module by module, so that hooks see each."""
        self.copies: BlockCopies | None = None

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        copies = self.copies
        if copies is not None:
            math_ = self.math or block_math
            return math_(
                x, cosine, sine,
                self.attention_norm.weight, (copies.attention_inputs,), copies.attention_output,
                self.ffn_norm.weight, (copies.ffn_inputs,), copies.ffn_output,
                self.shape,
            )  # fmt: skip
        if self.math is not None:
            return self.math(
                x, cosine, sine,
                self.attention_norm.weight, self.attention.inputs(), self.attention.wo.weight,
                self.ffn_norm.weight, self.feed_forward.inputs(), self.feed_forward.down.weight,
                self.shape,
            )  # fmt: skip
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        hidden: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return hidden


class Decoder(nn.Module):
    """Calling it gives the loss, so that whatever wraps it (DDP, FSDP) sees the whole of a micro batch.

    With several heads the last block and each further one read the same hidden state; head k predicts k + 1 ahead.
    """

    def __init__(self, config: ModelConfig, rows: int, dtype: torch.dtype, loss_chunk_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.loss_chunk_tokens = loss_chunk_tokens
        self.shape = Shape(config.width // config.heads, config.heads, kv_heads(config), config.norm_eps)
        # Its own constructor fills it, which on the meta device takes torch a second of imports.
        self.tok_embed = nn.Embedding(rows, config.width, _weight=torch.empty(rows, config.width))
        self.layers = nn.ModuleList(Block(config, self.shape) for _ in range(config.layers))
        self.further_heads = nn.ModuleList(Block(config, self.shape) for _ in range(config.multi_token_heads - 1))
        self.norm = Norm(config.width, config.norm_eps)
        self.output = None if config.tied_embeddings else nn.Linear(config.width, rows, bias=False)
        self.embedding_copy: Tensor | None = None
        self.output_copy: Tensor | None = None
        self.positions: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor, targets: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """The mean loss of a micro batch times `scale`. `targets` has `multi_token_heads - 1` tokens more a sample."""
        return self.losses(self.hidden(inputs), targets, scale)

    def hidden(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """What the output matrix multiplies, one for each head."""
        cosine, sine = self._positions(inputs.shape[1])
        x = self._embed(inputs)
        *before, last = self.layers  # a slice would be a new ModuleList, which the compiler does not like
        for block in before:
            x = self._run(block, x, cosine, sine)
        heads = (last, *self.further_heads)
        return tuple(self.norm(self._run(block, x, cosine, sine)) for block in heads)

    def losses(self, hidden: tuple[Tensor, ...], targets: Tensor, scale: Tensor | float) -> Tensor:
        tokens = hidden[0].shape[1]
        weight = self._output_weight()
        total: Tensor | None = None
        for ahead, state in enumerate(hidden):
            share = scale if ahead == 0 else scale * self.config.multi_token_weight
            loss = linear_cross_entropy(
                state.flatten(0, 1),
                weight,
                targets[:, ahead : ahead + tokens].reshape(-1),
                share,
                self.loss_chunk_tokens,
            )
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def logits(self, inputs: Tensor) -> Tensor:
        """Of the next token, all at once: for looking at a few samples, not for training."""
        weight = self._output_weight().to(self.dtype)
        return F.linear(self.hidden(inputs)[0], weight)

    def blocks(self) -> Iterator[Block]:
        for block in (*self.layers, *self.further_heads):
            assert isinstance(block, Block)
            yield block

    @contextlib.contextmanager
    def plainly(self) -> Iterator[None]:
        """While it lasts, the masters are used, and every module is called by itself, without compiled kernels."""
        blocks = [(block, block.math, block.copies) for block in self.blocks()]
        copies = self.embedding_copy, self.output_copy
        compiled, norm_math = self.__dict__.pop("hidden", None), self.norm.math
        self.norm.math = rms_norm
        for block, _, _ in blocks:
            block.math = block.copies = None
        self.embedding_copy = self.output_copy = None
        try:
            with plain_products():
                yield
        finally:
            for block, math_, kept in blocks:
                block.math, block.copies = math_, kept
            self.embedding_copy, self.output_copy = copies
            self.norm.math = norm_math
            if compiled is not None:
                self.__dict__["hidden"] = compiled

    def _embed(self, inputs: Tensor) -> Tensor:
        if self.embedding_copy is not None:
            return F.embedding(inputs, self.embedding_copy)
        embedded: Tensor = self.tok_embed(inputs)
        return embedded.to(self.dtype)

    def _output_weight(self) -> Tensor:
        if self.output is None:
            return self.tok_embed.weight if self.embedding_copy is None else self.embedding_copy
        return self.output.weight if self.output_copy is None else self.output_copy

    def _run(self, block: nn.Module, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        result: Tensor
        if self.config.gradient_checkpointing and self.training:
            result = checkpoint(block, x, cosine, sine, use_reentrant=False)
        else:
            result = block(x, cosine, sine)
        return result

    def _positions(self, tokens: int) -> tuple[Tensor, Tensor]:
        if self.positions is None:
            self.positions = rotary_tables(self.config, self.norm.weight.device)
        cosine, sine = self.positions
        return cosine[:tokens], sine[:tokens]


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Fills every parameter. Each has random numbers of its own, decided by the seed and its name alone, so that all
    ways of spreading the model over ranks start from the same weights."""
    last = model.config.init_std / math.sqrt(2 * model.config.layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        generator = torch.Generator(device=parameter.device).manual_seed(_seed_of(name, seed))
        std = last if name.endswith(("wo.weight", "down.weight")) else model.config.init_std
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        full.normal_(0.0, std, generator=generator)
        if isinstance(parameter, DTensor):
            # Every rank has drawn the same numbers: nothing needs to be sent.
            full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(full)
    model.positions = rotary_tables(model.config, model.norm.weight.device)


def _seed_of(name: str, seed: int) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
