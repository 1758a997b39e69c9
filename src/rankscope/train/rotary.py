"""Rotary positions for queries and keys that lie beside the values in one tensor.

The backward pass writes the gradients of all three side by side, as the product before it wants them, in one pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankscope.train.config import ModelConfig


def rotary_tables(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of [tokens, 1, half a head]."""
    size = config.width // config.heads
    frequencies = config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), frequencies)[:, None, :]
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Of [batch, tokens, heads, size]: the halves of each head are the two coordinates."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def with_positions(mixed: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of [batch, tokens, all of their heads, size], the first two turned by their position."""
    query, key, value = _Rotary.apply(mixed, cosine, sine, heads)  # type: ignore[no-untyped-call]
    return query, key, value


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, mixed: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        context.save_for_backward(cosine, sine)
        query, key = torch.ops.rankscope.turned(mixed, cosine, sine, heads)
        kv_heads = (mixed.shape[2] - heads) // 2
        return query, key, mixed.narrow(2, heads + kv_heads, kv_heads)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return torch.ops.rankscope.turned_back(*gradients, *context.saved_tensors), None, None, None


def _turned(mixed: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    kv_heads = (mixed.shape[2] - heads) // 2
    query, key, _ = torch.split(mixed, [heads, kv_heads, kv_heads], dim=2)
    return rotate(query, cosine, sine), rotate(key, cosine, sine)


def _turned_back(query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return torch.cat((rotate(query, cosine, -sine), rotate(key, cosine, -sine), value), dim=2)


_forwards = torch.library.custom_op(
    "rankscope::turned",
    _turned,
    mutates_args=(),
    schema="(Tensor mixed, Tensor cosine, Tensor sine, int heads) -> (Tensor, Tensor)",
)
_backwards = torch.library.custom_op(
    "rankscope::turned_back",
    _turned_back,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor cosine, Tensor sine) -> Tensor",
)


@_forwards.register_fake
def _turned_forms(mixed: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    batch, tokens, all_heads, size = mixed.shape
    return mixed.new_empty(batch, tokens, heads, size), mixed.new_empty(batch, tokens, (all_heads - heads) // 2, size)


@_backwards.register_fake
def _turned_back_form(query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:  # noqa: ARG001
    batch, tokens, heads, size = query.shape
    return query.new_empty(batch, tokens, heads + 2 * key.shape[2], size)


def use_kernels() -> None:
    """From now on both passes are kernels of our own where the tensors are on a GPU; needs Triton."""
    from rankscope.train.kernels import rotary

    _forwards.register_kernel("cuda", rotary.turned)
    _backwards.register_kernel("cuda", rotary.turned_back)
