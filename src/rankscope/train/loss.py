"""Cross-entropy over a large vocabulary that never holds the logits of all tokens at one time.

Tokens are taken in chunks. For each chunk the logits are made, turned into the loss and at once into the gradients of
the hidden state and of the output matrix, and then forgotten: no logits are kept for, or computed again in, the
backward pass, which only has to hand on what the forward pass has found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankscope.train.kernels import has_own_kernels
from rankscope.train.products import add_product_in_fp32, multiply

_ChunkMath = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_LOGITS_BYTES = 1 << 30


def chunk_tokens(vocabulary: int, chosen: int | None) -> int:
    """Tokens of one chunk: what was chosen, else as many as keep a chunk's logits near 1 GiB, a power of two."""
    if chosen is not None:
        return chosen
    fitting = _LOGITS_BYTES // (2 * vocabulary)
    return max(256, 1 << (fitting.bit_length() - 1))


def logits_to_gradient(logits: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a chunk's losses, and `scale` times its gradient in the logits' own type. The logits may be lost."""
    wide = logits.float()
    normaliser = wide.logsumexp(-1)
    chosen = wide.gather(-1, targets[:, None]).squeeze(-1)
    rows = torch.arange(logits.shape[1], device=logits.device)
    gradient = (wide - normaliser[:, None]).exp() - (rows == targets[:, None]).float()
    return (normaliser - chosen).sum(), (gradient * scale).to(logits.dtype)


def _multiplied(gradient: Tensor, given: Tensor) -> Tensor:
    return gradient * given.to(gradient.dtype)


_chunk_math: _ChunkMath = logits_to_gradient
_times: Callable[[Tensor, Tensor], Tensor] = _multiplied


def compile_loss(device: torch.device, **options: Any) -> None:
    """From now on one kernel turns a chunk's logits into its gradient: one of our own on a GPU, else a compiled one."""
    global _chunk_math, _times  # noqa: PLW0603  one process trains one model
    if has_own_kernels(device):
        from rankscope.train.kernels.logits import gradient_in_place, times_in_place

        _chunk_math, _times = gradient_in_place, times_in_place
    else:
        _chunk_math = torch.compile(logits_to_gradient, **options)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, scale: Tensor | float, chunk: int) -> Tensor:
    """`scale` times the mean of the cross-entropy of `hidden @ weight.T` [tokens, vocabulary] against `targets`.

    Products are made in the type of `hidden`; the loss, and the weight's gradient over the chunks, are summed in fp32.
    """
    chunk = -(-targets.numel() // -(-targets.numel() // chunk))  # of one size, so that nothing is compiled twice
    # Filled on the device: copied there, it would make the host wait.
    factor = scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32, device=hidden.device)
    if not torch.is_grad_enabled():
        return _loss_only(hidden, weight, targets, chunk) * factor
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, factor, chunk)  # type: ignore[no-untyped-call]
    return loss


def _loss_only(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    matrix = weight.to(hidden.dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for start in range(0, targets.numel(), chunk):
        states, wanted = hidden[start : start + chunk], targets[start : start + chunk]
        wide = (states @ matrix.T).float()
        total += (wide.logsumexp(-1) - wide.gather(-1, wanted[:, None]).squeeze(-1)).sum()
    return total / targets.numel()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, targets: Tensor, scale: Tensor, chunk: int) -> Tensor:
        matrix = weight.to(hidden.dtype)
        share = scale.float() / targets.numel()
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        for start in range(0, targets.numel(), chunk):
            states = hidden[start : start + chunk]
            logits = multiply(states, matrix, states.new_empty(len(states), len(matrix)), right_turned=True)
            loss, gradient = _chunk_math(logits, targets[start : start + chunk], share)
            total += loss
            multiply(gradient, matrix, hidden_gradient[start : start + chunk])
            weight_gradient = _add_product(weight_gradient, gradient, states)
        assert weight_gradient is not None
        context.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        context.handed_on = False
        return total * share

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (given,) = gradients
        if context.handed_on:  # what was saved may have been multiplied where it lies
            raise RuntimeError("the loss has been differentiated before: compute it again")
        context.handed_on = True
        hidden_gradient, weight_gradient = (_times(each, given) for each in context.saved_tensors)
        return hidden_gradient, weight_gradient, None, None, None


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """`total + left.T @ right` in fp32, also where the factors are not."""
    if left.dtype == torch.float32:
        return left.T @ right if total is None else total.addmm_(left.T, right)
    if not _multiplies_into_fp32(left.device, left.dtype):
        product = (left.T @ right).float()
        return product if total is None else total.add_(product)
    if total is None:
        total = torch.empty(left.shape[1], right.shape[1], dtype=torch.float32, device=left.device)
        return multiply(left, right, total, left_turned=True)
    add_product_in_fp32(total, left, right)
    return total


@functools.cache
def _multiplies_into_fp32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device adds a product of this type to an fp32 sum without rounding it first; tried once."""
    if device.type != "cuda":
        return False
    factors = torch.ones(16, 16, device=device, dtype=dtype)
    total = torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, factors.T, factors, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False  # an older torch or GPU
    return bool((total == 17).all())
