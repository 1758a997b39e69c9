"""Cross-entropy in chunks: the same numbers as torch's own, without the logits of all tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rankscope.train import loss as losses


def small(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(50, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(40, 16, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(40, (50,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 1000])
def test_loss_and_gradients_are_those_of_the_whole_product(chunk: int) -> None:
    hidden, weight, targets = small()
    (3 * losses.linear_cross_entropy(hidden, weight, targets, 0.5, chunk)).backward()  # type: ignore[no-untyped-call]
    hidden_again, weight_again, _ = small()
    expected = 0.5 * F.cross_entropy(hidden_again @ weight_again.T, targets)
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(losses.linear_cross_entropy(hidden, weight, targets, 0.5, chunk), expected)
    torch.testing.assert_close(hidden.grad, hidden_again.grad)
    torch.testing.assert_close(weight.grad, weight_again.grad)


def test_gradient_of_an_fp32_weight_is_summed_in_fp32_also_where_products_are_bf16() -> None:
    hidden, weight, targets = small(torch.bfloat16)
    losses.linear_cross_entropy(hidden, weight, targets, 1.0, 8).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    wide, weight_again, _ = small()
    F.cross_entropy(wide @ weight_again.T, targets).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(weight.grad, weight_again.grad, rtol=0.05, atol=2e-3)


def test_logits_of_more_than_one_chunk_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = losses.logits_to_gradient

    def watched(logits: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(logits.shape[0])
        return real(logits, targets, scale)

    monkeypatch.setattr(losses, "_chunk_math", watched)
    hidden, weight, targets = small()
    losses.linear_cross_entropy(hidden, weight, targets, 1.0, 16).backward()  # type: ignore[no-untyped-call]
    assert sum(seen) == 50
    assert max(seen) <= 16


def test_loss_without_gradients_is_the_same() -> None:
    hidden, weight, targets = small()
    with_gradients = losses.linear_cross_entropy(hidden, weight, targets, 1.0, 16)
    with torch.no_grad():
        torch.testing.assert_close(losses.linear_cross_entropy(hidden, weight, targets, 1.0, 16), with_gradients)


def test_chunks_are_chosen_so_that_logits_take_about_a_gigabyte() -> None:
    assert losses.chunk_tokens(50304, None) == 8192
    assert losses.chunk_tokens(128256, None) == 4096
    assert losses.chunk_tokens(50304, 100) == 100
