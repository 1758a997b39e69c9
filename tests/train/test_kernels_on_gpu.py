"""What runs on a GPU only: our kernels, and a compiled step, against plain torch."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rankscope.train import loss as losses
from rankscope.train import products, rotary
from rankscope.train.config import ModelConfig, RunConfig, SystemConfig, TrainingConfig
from rankscope.train.kernels import cublaslt
from rankscope.train.place import find_place
from rankscope.train.spread import build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
]


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "_SETTLE_MS", 1.0)
    monkeypatch.setattr(cublaslt, "_LOOK_MS", 1.0)


@pytest.fixture
def own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_chunk_math", losses.logits_to_gradient)
    monkeypatch.setattr(losses, "_times", losses._times)
    losses.compile_loss(torch.device("cuda"))


def drawn(tokens: int, width: int, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    hidden = torch.randn(tokens, width, device="cuda").to(dtype).requires_grad_()
    weight = (0.2 * torch.randn(rows, width, device="cuda")).requires_grad_()
    return hidden, weight, torch.randint(rows, (tokens,), device="cuda")


@pytest.mark.usefixtures("own_kernel")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize("rows", [50, 8192, 50304])
def test_loss_and_gradients_are_those_of_plain_torch(rows: int, dtype: torch.dtype, error: float) -> None:
    hidden, weight, targets = drawn(300, 64, rows, dtype)
    found = losses.linear_cross_entropy(hidden, weight, targets, 0.5, 128)
    found.backward()  # type: ignore[no-untyped-call]
    wide, weight_again = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = 0.5 * F.cross_entropy(wide @ weight_again.T, targets)
    expected.backward()  # type: ignore[no-untyped-call]
    assert float((found - expected).detach().abs() / expected.detach()) < error
    for one, other in ((hidden.grad, wide.grad), (weight.grad, weight_again.grad)):
        assert one is not None
        assert other is not None
        assert float((one.double() - other).norm() / other.norm()) < error


@pytest.mark.usefixtures("own_kernel")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_value_that_is_not_finite_reaches_the_loss(bad: float) -> None:
    hidden, weight, targets = drawn(64, 16, 500, torch.float32)
    with torch.no_grad():
        hidden[7, 3] = bad
    assert not torch.isfinite(losses.linear_cross_entropy(hidden, weight, targets, 1.0, 32))


@pytest.mark.parametrize("inner", [64, 100, 4288])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_gradient_of_swiglu_is_that_of_plain_torch(inner: int, dtype: torch.dtype, error: float) -> None:
    from rankscope.train.kernels.swiglu import swiglu_gradient

    torch.manual_seed(3)
    both = (2 * torch.randn(3, 77, 2 * inner, device="cuda")).to(dtype)
    gradient = torch.randn(3, 77, inner, device="cuda").to(dtype)
    found = swiglu_gradient(gradient, both)
    wide = both.double().requires_grad_()
    gate, value = wide.chunk(2, dim=-1)
    (F.silu(gate) * value).backward(gradient.double())  # type: ignore[no-untyped-call]
    assert wide.grad is not None
    assert float((found.double() - wide.grad).norm() / wide.grad.norm()) < error


@pytest.mark.parametrize("rows", [1, 1000, 4288])
def test_sum_of_gradients_is_that_of_torch(rows: int) -> None:
    from rankscope.train.kernels.adding import add_in_place

    total = torch.randn(rows, 77, device="cuda")
    part = torch.randn(3 * rows, 77, device="cuda", dtype=torch.bfloat16)[rows : 2 * rows]
    expected = total + part
    add_in_place(total, part)
    assert torch.equal(total, expected)
    add_in_place(total.T, part.T)
    assert torch.equal(total, expected + part)


@pytest.mark.parametrize("width", [48, 768, 1600, 4096])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_gradient_of_a_forked_norm_is_that_of_plain_torch(width: int, dtype: torch.dtype, error: float) -> None:
    from rankscope.train.kernels.norm import norm_gradient

    torch.manual_seed(4)
    x, through, past = (torch.randn(5, 777, width, device="cuda").to(dtype) for _ in range(3))
    weight = torch.randn(width, device="cuda")
    of_x, of_weight = norm_gradient(through, past, x, weight, 1e-5)
    wide, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * wide_weight
    torch.autograd.backward((wide * 1.0, normed), (past.double(), through.double()))
    for one, other in ((of_x, wide.grad), (of_weight, wide_weight.grad)):
        assert other is not None
        assert float((one.double() - other).norm() / other.norm()) < error


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(25, 25, 64), (32, 8, 128), (5, 1, 24), (6, 2, 96)])
def test_rotary_positions_are_those_of_plain_torch_in_both_passes(heads: int, kv_heads: int, size: int) -> None:
    from rankscope.train.kernels import rotary as kernels

    torch.manual_seed(5)
    all_heads = heads + 2 * kv_heads
    mixed = torch.randn(2, 33, all_heads, size, device="cuda", dtype=torch.bfloat16)
    angles = torch.randn(33, 1, size // 2, device="cuda")
    cosine, sine = angles.cos(), angles.sin()
    wanted = [rotary.rotate(each, cosine, sine) for each in torch.split(mixed[:, :, : heads + kv_heads], heads, dim=2)]
    for one, other in zip(kernels.turned(mixed, cosine, sine, heads), wanted, strict=False):
        assert torch.allclose(one.float(), other.float(), atol=1e-2, rtol=1e-2)
    query = torch.randn(2, heads, 33, size, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    key, value = (torch.randn(2, 33, kv_heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    back = kernels.turned_back(query, key, value, cosine, sine)
    expected = torch.cat((rotary.rotate(query, cosine, -sine), rotary.rotate(key, cosine, -sine), value), dim=2)
    assert back.shape == (2, 33, all_heads, size)
    assert torch.allclose(back.float(), expected.float(), atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("short_trials")
@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("compiled", ["blocks", "whole"])
def test_compiled_step_in_bf16_gives_the_gradients_of_plain_fp32(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_LEAST_FLOPS", 0.0)
    model = ModelConfig(layers=2, width=128, heads=2, ffn=192, context_length=128, compile=compiled)  # type: ignore[arg-type]
    config = RunConfig(model=model, training=TrainingConfig(batch_size=4))
    place = find_place(SystemConfig())
    uncompiled = replace(config, model=replace(model, compile="off"))
    plain = build_model(uncompiled, place, "single", 512, torch.float32)
    spread = build_model(config, place, "single", 512, torch.bfloat16)
    tokens = torch.randint(512, (4, 129), device=place.device)
    loss = spread.called(tokens[:, :-1], tokens[:, 1:], 1.0)
    loss.backward()
    assert spread.copies is not None
    spread.copies.collect()
    expected = plain.called(tokens[:, :-1], tokens[:, 1:], 1.0)
    expected.backward()
    assert float((loss - expected).detach().abs() / expected.detach()) < 1e-2
    wanted = dict(plain.model.named_parameters())
    for name, parameter in spread.model.named_parameters():
        one, other = parameter.grad, wanted[name].grad
        assert one is not None
        assert other is not None
        assert float((one - other).norm() / other.norm()) < 5e-2, name
    assert len(products.choices()) == 12  # three of each matrix, and two of a block's four have the same shape
    products.leave_products_to_torch()


@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize(("left_turned", "right_turned"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("into", ["own", "fp32", "sum"])
def test_product_that_was_tried_is_that_of_torch(left_turned: bool, right_turned: bool, into: str) -> None:
    rows, columns, inner, dtype = 1536, 640, 1024, torch.bfloat16
    torch.manual_seed(3)
    left = torch.randn((inner, rows) if left_turned else (rows, inner), device="cuda").to(dtype)
    right = torch.randn((columns, inner) if right_turned else (inner, columns), device="cuda").to(dtype)
    out = torch.randn(rows, columns, device="cuda").to(dtype if into == "own" else torch.float32)
    before, found = out.double(), cublaslt.Products(torch.device("cuda"))
    found.multiply(left, right, out, left_turned=left_turned, right_turned=right_turned, add=into == "sum")
    expected = (left.T if left_turned else left).double() @ (right.T if right_turned else right).double()
    expected = expected + before if into == "sum" else expected
    assert float((out.double() - expected).norm() / expected.norm()) < (5e-3 if into == "own" else 1e-5)
    (choice,) = found.choices
    assert (choice.rows, choice.columns, choice.inner) == (rows, columns, inner)
    assert choice.kernels > 1
    assert choice.best_ms <= choice.torchs_ms


def test_gradient_of_a_loss_that_is_part_of_another_is_multiplied() -> None:
    from rankscope.train.kernels.logits import times_in_place

    values = torch.randn(1000, 30, device="cuda")
    expected = values * 0.25
    assert torch.equal(times_in_place(values, torch.tensor(0.25, device="cuda")), expected)
    assert torch.equal(times_in_place(values, torch.ones((), device="cuda")), expected)
