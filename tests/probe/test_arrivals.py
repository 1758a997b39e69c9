"""The gradient that comes last in a backward pass is nearest to the input, wherever its parameter is declared."""

from __future__ import annotations

import torch
from torch import nn

from rankscope.probe.arrivals import Arrivals
from rankscope.probe.parameters import sentinel_of


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 5))
        self.head = nn.Linear(5, 5)
        self.body = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5))
        self.unused = nn.Linear(2, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(values)) @ self.centres.t()  # type: ignore[no-any-return]


def test_the_last_gradient_of_a_pass_comes_first() -> None:
    model = Encoder()
    arrivals = Arrivals(torch, model.parameters())
    assert arrivals.last_first() == []
    model(torch.randn(2, 4)).sum().backward()
    order = arrivals.last_first()
    assert order[0] is model.body[0].weight
    assert sentinel_of(order) is model.body[0].weight
    assert sentinel_of(list(model.parameters())) is model.centres, "what is declared first may be the last of the model"
    assert not any(each is parameter for each in order for parameter in model.unused.parameters())


def test_one_pass_is_watched_and_no_more() -> None:
    model = Encoder()
    arrivals = Arrivals(torch, model.parameters())
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
    order = arrivals.last_first()
    assert len(order) == 6
    model(torch.randn(2, 4)).sum().backward()
    assert [id(each) for each in arrivals.last_first()] == [id(each) for each in order]


def test_frozen_parameters_are_left_alone() -> None:
    model = Encoder()
    model.body.requires_grad_(False)
    arrivals = Arrivals(torch, model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    assert {id(each) for each in arrivals.last_first()} == {
        id(model.centres),
        *(id(each) for each in model.head.parameters()),
    }
