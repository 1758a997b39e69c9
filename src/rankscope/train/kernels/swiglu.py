# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found,unused-ignore"
"""The gradients of SwiGLU's gate and value in one Triton kernel: everything is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_WARPS = 8


@triton.jit
def _elements(gradients, both, results, count, INNER: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    of_gate = place + (place // INNER) * INNER
    gradient = tl.load(gradients + place, mask=inside).to(tl.float32)
    gate = tl.load(both + of_gate, mask=inside).to(tl.float32)
    value = tl.load(both + of_gate + INNER, mask=inside).to(tl.float32)
    share = tl.sigmoid(gate)
    opened = gate * share
    kind = results.dtype.element_ty
    tl.store(results + of_gate, (gradient * value * (share + opened * (1.0 - share))).to(kind), mask=inside)
    tl.store(results + of_gate + INNER, (gradient * opened).to(kind), mask=inside)


def swiglu_gradient(gradient: Tensor, both: Tensor) -> Tensor:
    """Of [..., gate and value], given that of the product."""
    gradient, both = gradient.contiguous(), both.contiguous()
    results = torch.empty_like(both)
    count = gradient.numel()
    with torch.cuda.device(both.device):
        _elements[(triton.cdiv(count, _BLOCK),)](
            gradient, both, results, count, INNER=gradient.shape[-1], BLOCK=_BLOCK, num_warps=_WARPS
        )  # fmt: skip
    return results
