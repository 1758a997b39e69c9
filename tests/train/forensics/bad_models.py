"""Small models that go bad in known places, and what an investigation needs to repeat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.train.forensics.investigation import Repeatable
from rankscope.train.forensics.watch import Batch, FiniteWatch, KeptStep

FIRST_SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Tokens:
    inputs: Tensor
    targets: Tensor
    sample_ids: Tensor


class Block(nn.Module):
    def __init__(self, spoil: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.spoil = spoil

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.norm(x))
        return self.spoil(x + mixed)


class Model(nn.Module):
    """Calling it gives the loss. Each block may do something to its own output, in its own arithmetic."""

    def __init__(self, *spoils: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(spoil) for spoil in spoils)
        self.head = nn.Linear(8, 16)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(inputs)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def fine(x: Tensor) -> Tensor:
    return x


def nan_in_row_1(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, float("nan"), 1.0]).view(3, 1, 1)


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0] / 0.0


def infinite_gradient(x: Tensor) -> Tensor:
    result: Tensor = _BadGradient.apply(x)  # type: ignore[no-untyped-call]
    return result


def seeded(*spoils: Callable[[Tensor], Tensor]) -> Model:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Model(*spoils)


def repeatable(model: Model) -> Repeatable:
    def gradients(_step: int, batches: Iterable[Batch]) -> Tensor:
        model.zero_grad()
        total = torch.zeros(())
        for batch in batches:
            loss = model(batch.inputs, batch.targets)
            loss.backward()
            total += loss.detach()
        return total

    return Repeatable(model, gradients)


def kept_step(model: Model, step: int = 7, micro_batches: int = 2) -> KeptStep:
    """As the loop leaves it: two micro batches of three samples."""
    watch = FiniteWatch(torch.device("cpu"), 1)
    watch.begin(step)
    order = torch.Generator().manual_seed(1)
    for number in range(micro_batches):
        tokens = torch.randint(0, 16, (3, 5), generator=order)
        watch.saw(Tokens(tokens[:, :-1], tokens[:, 1:], torch.arange(3) + FIRST_SAMPLE + 3 * number))
    kept = watch.kept(step)
    assert kept is not None
    kept.local_loss = repeatable(model).gradients(step, list(kept.batches))
    return kept
