"""SwiGLU of a gate and a value that lie side by side in one tensor, with one kernel for both of their gradients.

What torch's compiler makes of the same arithmetic computes, for each element that it writes, the gradients of the gate
and of the value, and throws one of them away.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(both: Tensor) -> Tensor:
    """`silu(gate) * value` of [..., gate and value]."""
    result: Tensor = _SwiGLU.apply(both)  # type: ignore[no-untyped-call]
    return result


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, both: Tensor) -> Tensor:
        context.save_for_backward(both)
        gate, value = both.chunk(2, dim=-1)
        return F.silu(gate) * value

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (both,) = context.saved_tensors
        result: Tensor = torch.ops.rankscope.swiglu_gradient(gradients[0], both)
        return result


def _in_torch(gradient: Tensor, both: Tensor) -> Tensor:
    gate, value = both.float().chunk(2, dim=-1)
    wide, share = gradient.float(), gate.sigmoid()
    of_gate = wide * value * share * (1 + gate * (1 - share))
    return torch.cat((of_gate, wide * gate * share), dim=-1).to(both.dtype)


_operation = torch.library.custom_op(
    "rankscope::swiglu_gradient",
    _in_torch,
    mutates_args=(),
    schema="(Tensor gradient, Tensor both) -> Tensor",
)


@_operation.register_fake
def _shape(gradient: Tensor, both: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty(both.shape, dtype=both.dtype, device=both.device)


def use_kernel() -> None:
    """From now on the gradients come from a kernel of our own where the tensors are on a GPU; needs Triton."""
    from rankscope.train.kernels.swiglu import swiglu_gradient

    _operation.register_kernel("cuda", swiglu_gradient)
