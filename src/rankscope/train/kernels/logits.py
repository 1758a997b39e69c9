# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found,unused-ignore"
"""Loss and gradient of a chunk's logits in one Triton kernel, written over the logits themselves.

The compiled form of the same arithmetic goes through a row three times. Here a row is read twice, the second time from
the cache of the GPU, where it still is: few rows are under way at one time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 16384
_WARPS = 16
_PER_BASE_2 = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(logits, targets, share, losses, row_stride, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    target = tl.load(targets + row)
    wanted = tl.load(logits + target).to(tl.float32)
    factor = tl.load(share).to(tl.float32)
    places = tl.arange(0, BLOCK)
    highest = float("-inf")
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        inside = start + places < vocabulary
        values = tl.load(logits + start + places, mask=inside, other=float("-inf"), eviction_policy="evict_last")
        values = values.to(tl.float32) * _PER_BASE_2
        now_highest = tl.maximum(highest, tl.max(values, 0))
        total = total * tl.exp2(highest - now_highest) + tl.sum(tl.exp2(values - now_highest), 0)
        highest = now_highest
    normaliser = highest + tl.log2(total)
    tl.store(losses + row, normaliser / _PER_BASE_2 - wanted)
    for start in range(0, vocabulary, BLOCK):
        inside = start + places < vocabulary
        values = tl.load(logits + start + places, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        gradient = tl.exp2(values.to(tl.float32) * _PER_BASE_2 - normaliser)
        gradient = tl.where(start + places == target, gradient - 1.0, gradient) * factor
        tl.store(logits + start + places, gradient.to(logits.dtype.element_ty), mask=inside)


def gradient_in_place(logits: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a chunk's losses, and `scale` times its gradient, which is where the logits were."""
    count, vocabulary = logits.shape
    assert logits.stride(1) == 1
    losses = torch.empty(count, dtype=torch.float32, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(vocabulary))
    with torch.cuda.device(logits.device):
        _rows[(count,)](
            logits, targets, scale, losses, logits.stride(0), vocabulary, BLOCK=block, num_warps=_WARPS
        )  # fmt: skip
    return losses.sum(), logits


@triton.jit
def _elements(values, factor, count, BLOCK: tl.constexpr):
    given = tl.load(factor).to(tl.float32)
    if given != 1.0:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        value = tl.load(values + place, mask=inside).to(tl.float32) * given
        tl.store(values + place, value.to(values.dtype.element_ty), mask=inside)


def times_in_place(values: Tensor, factor: Tensor) -> Tensor:
    """`values *= factor`, which touches no memory where the factor is 1, as it is where the loss is the whole loss."""
    count = values.numel()
    with torch.cuda.device(values.device):
        _elements[(triton.cdiv(count, _BLOCK),)](values, factor, count, BLOCK=_BLOCK, num_warps=_WARPS)
    return values
