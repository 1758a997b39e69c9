"""Products of activations with weights: torch's own, or, where it is asked for, those of kernels/cublaslt.py.

Both passes of a linear layer then go through one operation that torch's compiler leaves alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST_FLOPS = 2e10
"""Smaller products, which take less than 50 µs on a large GPU, are left to torch: nothing is tried for them."""


class Products(Protocol):
    def multiply(
        self, left: Tensor, right: Tensor, out: Tensor, *, left_turned: bool, right_turned: bool, add: bool
    ) -> None: ...


_tried: Products | None = None


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`."""
    if _tried is None or x.dtype == torch.float32:
        return F.linear(x, weight)
    result: Tensor = _Linear.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        result: Tensor = torch.ops.rankscope.product(x.flatten(0, -2), weight, False, True)
        return result.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        of_x = torch.ops.rankscope.product(gradient, weight, False, False)
        return of_x.view(x.shape), torch.ops.rankscope.product(gradient, x.flatten(0, -2), True, False)


def multiply(
    left: Tensor, right: Tensor, out: Tensor, *, left_turned: bool = False, right_turned: bool = False
) -> Tensor:
    """`out = left @ right`; a factor that is `turned` lies there transposed. `out` may be fp32 where the device can."""
    if _worth_trying(left, right, out, left_turned=left_turned):
        assert _tried is not None
        _tried.multiply(left, right, out, left_turned=left_turned, right_turned=right_turned, add=False)
        return out
    left, right = left.T if left_turned else left, right.T if right_turned else right
    if out.dtype == left.dtype:
        return torch.mm(left, right, out=out)
    return torch.mm(left, right, out_dtype=out.dtype, out=out)


def add_product_in_fp32(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left.T @ right`, where the device does that without rounding the product first."""
    if _worth_trying(left, right, total, left_turned=True):
        assert _tried is not None
        _tried.multiply(left, right, total, left_turned=True, right_turned=False, add=True)
    else:
        torch.addmm(total, left.T, right, out_dtype=torch.float32, out=total)


def _worth_trying(left: Tensor, right: Tensor, out: Tensor, *, left_turned: bool) -> bool:
    if _tried is None or left.dtype == torch.float32:
        return False
    inner = left.shape[0] if left_turned else left.shape[1]
    return 2.0 * out.numel() * inner >= _LEAST_FLOPS and all(each.is_contiguous() for each in (left, right, out))


def _product(left: Tensor, right: Tensor, left_turned: bool, right_turned: bool) -> Tensor:
    left, right = left.contiguous(), right.contiguous()
    out = _form(left, right, left_turned, right_turned)
    return multiply(left, right, out, left_turned=left_turned, right_turned=right_turned)


def _form(left: Tensor, right: Tensor, left_turned: bool, right_turned: bool) -> Tensor:
    return left.new_empty(left.shape[1 if left_turned else 0], right.shape[0 if right_turned else 1])


_operation = torch.library.custom_op(
    "rankscope::product",
    _product,
    mutates_args=(),
    schema="(Tensor left, Tensor right, bool left_turned, bool right_turned) -> Tensor",
)
_operation.register_fake(_form)


def try_products(device: torch.device) -> bool:
    """From now on the kernel of each large product is the fastest of several; False where that cannot be."""
    global _tried  # noqa: PLW0603  one process trains one model
    from rankscope.train.kernels import cublaslt

    try:
        _tried = cublaslt.Products(device)
    except (OSError, AttributeError, RuntimeError):
        return False
    return True


def choices() -> list[dict[str, Any]]:
    """Shapes for which kernels were tried, with what was found."""
    return [asdict(choice) for choice in getattr(_tried, "choices", ())]


def leave_products_to_torch() -> None:
    global _tried  # noqa: PLW0603
    _tried = None


@contextlib.contextmanager
def plain_products() -> Iterator[None]:
    """While it lasts, torch makes all products."""
    global _tried  # noqa: PLW0603
    before, _tried = _tried, None
    try:
        yield
    finally:
        _tried = before
