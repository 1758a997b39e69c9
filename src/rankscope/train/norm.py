"""RMSNorm, by itself and where the residual stream forks: one way past the norm, one through it.

The fork has a backward pass of its own: what comes back on both ways, and the weight's gradient, in one pass over the
rows. Torch's compiler reads the rows twice for the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp32 inside, whatever comes in; the result has the type of `x`."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def forked_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x` itself and its norm."""
    past, through = _Fork.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return past, through


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        context.save_for_backward(x, weight)
        context.eps = eps
        return x.view_as(x), rms_norm(x, weight, eps)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = context.saved_tensors
        past, through = gradients
        of_x, of_weight = torch.ops.rankscope.norm_gradient(through, past, x, weight, context.eps)
        return of_x, of_weight.to(weight.dtype), None


def _in_torch(gradient: Tensor, beside: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide, of_result = x.float(), gradient.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * scale
    weighed = of_result * weight.float()
    of_x = (weighed - normed * (weighed * normed).mean(-1, keepdim=True)) * scale
    of_weight = (of_result * normed).flatten(0, -2).sum(0)
    return (beside.float() + of_x).to(x.dtype), of_weight


_operation = torch.library.custom_op(
    "rankscope::norm_gradient",
    _in_torch,
    mutates_args=(),
    schema="(Tensor gradient, Tensor beside, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
)


@_operation.register_fake
def _forms(gradient: Tensor, beside: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return of_x, torch.empty(weight.shape, dtype=torch.float32, device=x.device)


def use_kernel() -> None:
    """From now on the backward pass is a kernel of our own where the tensors are on a GPU; needs Triton."""
    from rankscope.train.kernels.norm import norm_gradient

    _operation.register_kernel("cuda", norm_gradient)
