"""What the device decides by itself while the host does not look."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankscope.train.forensics.watch import KEPT_STEPS, FiniteWatch

CPU = torch.device("cpu")
GOOD, BAD = torch.zeros(()), torch.ones(())


def applied(watch: FiniteWatch, gradients: list[float]) -> tuple[list[bool], list[bool]]:
    """Runs a fused AdamW over the gradients; which steps changed the weight, and from which on the run has ended."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    changed, ended = [], []
    for gradient in gradients:
        before = weight.detach().clone()
        weight.grad = torch.full((3,), gradient)
        norm = weight.grad.norm()
        optimizer.found_inf, ends = watch.gate((~torch.isfinite(norm)).float())  # type: ignore[attr-defined]
        optimizer.step()
        changed.append(not torch.equal(before, weight))
        ended.append(bool(ends))
    assert torch.isfinite(weight).all()
    return changed, ended


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_after_a_bad_step_nothing_is_applied_any_more(bad: float) -> None:
    changed, ended = applied(FiniteWatch(CPU, stop_after=1), [1.0, bad, 1.0, 1.0])
    assert changed == [True, False, False, False]
    assert ended == [False, True, True, True]


def test_a_single_bad_step_is_left_out_where_two_in_a_row_end_the_run() -> None:
    nan = float("nan")
    changed, ended = applied(FiniteWatch(CPU, stop_after=2), [1.0, nan, 1.0, nan, nan, 1.0])
    assert changed == [True, False, True, False, False, False]
    assert ended == [False, False, False, False, True, True]


def test_an_overflow_that_a_lower_loss_scale_will_cure_does_not_end_the_run() -> None:
    watch = FiniteWatch(CPU, stop_after=1)
    skip, ends = watch.gate(BAD, counts=GOOD)
    assert (bool(skip), bool(ends)) == (True, False)
    skip, ends = watch.gate(BAD, counts=BAD)
    assert (bool(skip), bool(ends)) == (True, True)


def test_the_last_steps_can_be_repeated_with_their_random_numbers() -> None:
    watch = FiniteWatch(CPU, stop_after=1)
    drawn: dict[int, Tensor] = {}
    for step in range(10):
        watch.begin(step)
        drawn[step] = torch.rand(4)
    for step in range(10 - KEPT_STEPS, 10):
        kept = watch.kept(step)
        assert kept is not None
        kept.restore_random_state()
        assert torch.equal(torch.rand(4), drawn[step])
    assert watch.kept(10 - KEPT_STEPS - 1) is None
