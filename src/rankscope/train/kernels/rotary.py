# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found,unused-ignore"
"""Rotary positions in Triton: one kernel turns queries and keys where they lie beside the values, one turns their
gradients back and puts them beside that of the values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 4


@triton.jit
def _turn(
    source, head_stride, target, cosine, sine, heads, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """All heads of one token; those of the target lie side by side."""
    head = tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = (head < heads) & (place < HALF)
    first = tl.load(source + head * head_stride + place, mask=inside).to(tl.float32)
    second = tl.load(source + head * head_stride + place + HALF, mask=inside).to(tl.float32)
    kind = target.dtype.element_ty
    target += head * (2 * HALF) + place
    tl.store(target, (first * cosine - second * sine).to(kind), mask=inside)
    tl.store(target + HALF, (second * cosine + first * sine).to(kind), mask=inside)


@triton.jit
def _forwards(
    mixed, queries, keys, cosines, sines, tokens, heads, kv_heads,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)[None, :]
    cosine = tl.load(cosines + (token % tokens) * HALF + place, mask=place < HALF)
    sine = tl.load(sines + (token % tokens) * HALF + place, mask=place < HALF)
    size = 2 * HALF
    mixed += token * (heads + 2 * kv_heads) * size
    _turn(mixed, size, queries + token * heads * size, cosine, sine, heads, HEADS, HALF, BLOCK)
    _turn(mixed + heads * size, size, keys + token * kv_heads * size, cosine, sine, kv_heads, KV_HEADS, HALF, BLOCK)


@triton.jit
def _backwards(
    queries, keys, values, mixed, cosines, sines, tokens, heads, kv_heads,
    query_batch, query_token, query_head, key_batch, key_token, key_head, value_batch, value_token, value_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    sample = token // tokens
    token_of_sample = token % tokens
    place = tl.arange(0, BLOCK)[None, :]
    cosine = tl.load(cosines + token_of_sample * HALF + place, mask=place < HALF)
    sine = -tl.load(sines + token_of_sample * HALF + place, mask=place < HALF)
    size = 2 * HALF
    mixed += token * (heads + 2 * kv_heads) * size
    queries += sample * query_batch + token_of_sample * query_token
    _turn(queries, query_head, mixed, cosine, sine, heads, HEADS, HALF, BLOCK)
    mixed += heads * size
    keys += sample * key_batch + token_of_sample * key_token
    _turn(keys, key_head, mixed, cosine, sine, kv_heads, KV_HEADS, HALF, BLOCK)
    mixed += kv_heads * size
    head = tl.arange(0, KV_HEADS)[:, None]
    whole = tl.arange(0, 2 * BLOCK)[None, :]
    inside = (head < kv_heads) & (whole < size)
    values += sample * value_batch + token_of_sample * value_token
    tl.store(mixed + head * size + whole, tl.load(values + head * value_head + whole, mask=inside), mask=inside)


def turned(mixed: Tensor, cosine: Tensor, sine: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of [batch, tokens, queries, keys and values, head's size]."""
    batch, tokens, all_heads, size = mixed.shape
    kv_heads = (all_heads - heads) // 2
    mixed = mixed.contiguous()
    query = mixed.new_empty(batch, tokens, heads, size)
    key = mixed.new_empty(batch, tokens, kv_heads, size)
    with torch.cuda.device(mixed.device):
        _forwards[(batch * tokens,)](
            mixed, query, key, cosine.contiguous(), sine.contiguous(), tokens, heads, kv_heads,
            HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(kv_heads), HALF=size // 2,
            BLOCK=triton.next_power_of_2(size // 2), num_warps=_WARPS,
        )  # fmt: skip
    return query, key


def turned_back(query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The gradient of what `turned` was given, from those of queries, keys and values."""
    batch, tokens, heads, size = query.shape
    kv_heads = key.shape[2]
    query, key, value = (each if each.stride(3) == 1 else each.contiguous() for each in (query, key, value))
    mixed = query.new_empty(batch, tokens, heads + 2 * kv_heads, size)
    with torch.cuda.device(query.device):
        _backwards[(batch * tokens,)](
            query, key, value, mixed, cosine.contiguous(), sine.contiguous(), tokens, heads, kv_heads,
            *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
            HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(kv_heads), HALF=size // 2,
            BLOCK=triton.next_power_of_2(size // 2), num_warps=_WARPS,
        )  # fmt: skip
    return mixed
