"""The optimizer's step: clipped as torch clips, never applied where a gradient is not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankscope.train.config import TrainingConfig
from rankscope.train.optimizer import GatedStep, LossScale, learning_rate, local_squared_norm, make_optimizer

CPU = torch.device("cpu")


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))


def with_gradients(scale: float) -> nn.Module:
    made = model()
    generator = torch.Generator().manual_seed(4)
    for parameter in made.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return made


@pytest.mark.parametrize("scale", [0.01, 50.0])
def test_step_is_that_of_clip_grad_norm_and_adamw(scale: float) -> None:
    training = TrainingConfig(max_grad_norm=1.0, learning_rate=0.1)
    ours, theirs = with_gradients(scale), with_gradients(scale)
    norm = local_squared_norm(ours.parameters(), CPU).sqrt()
    GatedStep(make_optimizer(ours, training), 1.0).apply(norm, None, torch.zeros(()))
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs.parameters(), 1.0))
    make_optimizer(theirs, training).step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_loss_scale_is_taken_out_of_the_gradients() -> None:
    training = TrainingConfig(learning_rate=0.1)
    plain, scaled = with_gradients(0.5), with_gradients(0.5 * 1024)
    norm = local_squared_norm(plain.parameters(), CPU).sqrt()
    GatedStep(make_optimizer(plain, training), 1.0).apply(norm, None, torch.zeros(()))
    GatedStep(make_optimizer(scaled, training), 1.0).apply(norm, torch.tensor(1024.0), torch.zeros(()))
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_skipped_step_changes_neither_weights_nor_moments() -> None:
    made = with_gradients(1.0)
    optimizer = make_optimizer(made, TrainingConfig(learning_rate=0.1))
    step = GatedStep(optimizer, 1.0)
    step.apply(torch.tensor(1.0), None, torch.zeros(()))
    weights = [parameter.detach().clone() for parameter in made.parameters()]
    moments = [optimizer.state[parameter]["exp_avg"].clone() for parameter in made.parameters()]
    first = next(made.parameters())
    assert first.grad is not None
    first.grad[0, 0] = float("nan")
    norm = local_squared_norm(made.parameters(), CPU).sqrt()
    assert not torch.isfinite(norm)
    step.apply(norm, None, torch.ones(()))
    for before, parameter in zip(weights, made.parameters(), strict=True):
        assert torch.equal(before, parameter)
    for before, parameter in zip(moments, made.parameters(), strict=True):
        assert torch.equal(before, optimizer.state[parameter]["exp_avg"])
        assert float(optimizer.state[parameter]["step"]) == 1


def test_vectors_have_no_weight_decay() -> None:
    matrices, vectors = make_optimizer(model(), TrainingConfig(weight_decay=0.3)).param_groups
    assert matrices["weight_decay"] == 0.3
    assert {parameter.dim() for parameter in matrices["params"]} == {2}
    assert vectors["weight_decay"] == 0.0


def test_learning_rate_rises_then_falls_to_the_lowest_at_the_last_step() -> None:
    training = TrainingConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4, max_steps=20)
    rates = [learning_rate(training, step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_loss_scale_is_halved_after_an_overflow_and_remembered() -> None:
    scale = LossScale(CPU)
    first = float(scale.value)
    scale.update(torch.ones(()))
    assert float(scale.value) == first / 2
    other = LossScale(CPU)
    other.load_state_dict(scale.state_dict())
    assert float(other.value) == first / 2
