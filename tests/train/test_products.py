"""Products that may be made by other kernels than torch's: what they give, and when they are used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rankscope.errors import UsageError
from rankscope.train import loss as losses
from rankscope.train import products
from rankscope.train.config import ModelConfig, RunConfig, SystemConfig
from rankscope.train.place import Place, find_place
from rankscope.train.spread import build_model, products_wanted


class Counted:
    """Multiplies as torch does, and counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, bool, bool]] = []

    def multiply(
        self, left: Tensor, right: Tensor, out: Tensor, *, left_turned: bool, right_turned: bool, add: bool
    ) -> None:
        self.calls.append((left_turned, right_turned, add))
        product = (left.T if left_turned else left) @ (right.T if right_turned else right)
        out.copy_(out + product if add else product)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    monkeypatch.setattr(products, "_LEAST_FLOPS", 0.0)
    monkeypatch.setattr(products, "_tried", found)
    return found


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(6)
    x = torch.randn(2, 3, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(5, 8, dtype=torch.bfloat16, requires_grad=True)
    return x, weight, torch.randn(2, 3, 5, dtype=torch.bfloat16)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("compiled", [False, True])
def test_both_passes_of_a_linear_layer_are_those_of_torch(counted: Counted, compiled: bool) -> None:
    x, weight, gradient = drawn()
    expected = F.linear(x, weight)
    wanted = torch.autograd.grad(expected, (x, weight), gradient)
    called = torch.compile(products.linear, backend="aot_eager", fullgraph=True) if compiled else products.linear
    found = called(x, weight)
    assert torch.equal(found, expected)
    for one, other in zip(torch.autograd.grad(found, (x, weight), gradient), wanted, strict=True):
        assert torch.equal(one, other)
    assert counted.calls == [(False, True, False), (False, False, False), (True, False, False)]


def test_products_of_the_loss_go_the_same_way(counted: Counted) -> None:
    hidden, weight, _ = drawn()
    targets = torch.randint(5, (6,))
    losses.linear_cross_entropy(hidden.flatten(0, 1), weight, targets, 1.0, 3).backward()  # type: ignore[no-untyped-call]
    # The weight's gradient is summed in fp32, which no product of bf16 on a CPU can do.
    assert counted.calls == [(False, True, False), (False, False, False)] * 2


def test_loss_is_differentiated_once() -> None:
    hidden, weight, _ = drawn()
    loss = losses.linear_cross_entropy(hidden.flatten(0, 1), weight, torch.randint(5, (6,)), 1.0, 3)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="differentiated before"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_small_products_and_those_in_fp32_are_left_to_torch(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = drawn()
    products.linear(x.float(), weight.float())
    monkeypatch.setattr(products, "_LEAST_FLOPS", 1e6)
    assert torch.equal(products.linear(x, weight), F.linear(x, weight))
    assert counted.calls == []


def test_module_by_module_torch_makes_all_products(counted: Counted) -> None:
    config = RunConfig(model=ModelConfig(layers=1, width=32, heads=2, context_length=8, compile="off"))
    spread = build_model(config, find_place(SystemConfig(device="cpu")), "single", 64, torch.bfloat16)
    products._tried = counted
    tokens = torch.randint(64, (2, 9))
    with spread.model.plainly():
        spread.called(tokens[:, :-1], tokens[:, 1:], 1.0)
    assert counted.calls == []
    spread.called(tokens[:, :-1], tokens[:, 1:], 1.0)
    assert counted.calls


def test_products_are_tried_by_one_process_with_a_compiled_model_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.train.spread.has_own_kernels", lambda device: device.type == "cuda")
    gpu = replace(find_place(SystemConfig(device="cpu")), device=torch.device("cuda"))
    config = RunConfig()
    assert products_wanted(config, gpu, "single") == "tried"
    assert products_wanted(config, gpu, "ddp") == "torch"
    assert products_wanted(config, on_cpu(), "single") == "torch"
    assert products_wanted(replace(config, system=SystemConfig(deterministic=True)), gpu, "single") == "torch"
    assert products_wanted(replace(config, model=ModelConfig(compile="off")), gpu, "single") == "torch"
    assert products_wanted(replace(config, model=ModelConfig(products="torch")), gpu, "single") == "torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_products_cannot_be_tried_without_a_gpu() -> None:
    config = RunConfig(model=ModelConfig(layers=1, width=32, heads=2, context_length=8, products="tried"))
    with pytest.raises(UsageError, match=r"model\.products=torch"):
        build_model(config, on_cpu(), "single", 64, torch.bfloat16)


def on_cpu() -> Place:
    return find_place(SystemConfig(device="cpu"))
