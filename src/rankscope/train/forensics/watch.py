"""Notices a step whose gradient is not finite, on the device, and keeps the weights as they were before it.

The host learns of a step's values only when the next one is under way. Two things make that late news good enough.
A bad step is never applied: its flag goes to the fused optimizer, which then leaves weights and moments alone, all on
the device. And after as many bad steps in a row as end a run, nothing is applied any more: whenever the host hears of
it, the weights are still those with which the bad step was computed, so that the step can be repeated and looked into.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

KEPT_STEPS = 3
"""The step under way, the one the host hears of, and one more."""


class Batch(Protocol):
    """A micro batch, as far as repeating it needs to know."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def sample_ids(self) -> Tensor: ...


@dataclass(slots=True)
class KeptStep:
    """What it takes to compute a step again."""

    step: int
    random_state: Tensor
    cuda_random_state: Tensor | None
    batches: list[Batch] = field(default_factory=list)
    local_loss: Tensor | None = None
    """This rank's own, before anything was reduced; on the device."""

    def restore_random_state(self) -> None:
        torch.set_rng_state(self.random_state)
        if self.cuda_random_state is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda_random_state)


class FiniteWatch:
    """For each step: `begin`, `saw` for each micro batch, `local_loss`, `gate`. None of them waits for the device."""

    def __init__(self, device: torch.device, stop_after: int) -> None:
        self._device = device
        self._stop_after = stop_after
        self._in_a_row = torch.zeros((), device=device)
        self._frozen = torch.zeros((), device=device)
        self._kept: OrderedDict[int, KeptStep] = OrderedDict()
        self._now: KeptStep | None = None

    def begin(self, step: int) -> None:
        """Before the first micro batch of a step."""
        on_gpu = self._device.type == "cuda"
        self._now = KeptStep(step, torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if on_gpu else None)
        self._kept[step] = self._now
        while len(self._kept) > KEPT_STEPS:
            self._kept.popitem(last=False)

    def saw(self, batch: Batch) -> None:
        if self._now is not None:
            self._now.batches.append(batch)

    def local_loss(self, loss: Tensor) -> None:
        if self._now is not None:
            self._now.local_loss = loss.detach()

    def gate(self, bad: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`bad` is 1 where the step's gradient is not finite, on every rank alike; `counts` is 0 where that is no
        reason to end the run (a loss scale that is still to be lowered). Both lie on the device, as 0-d floats.

        Returns two such tensors: 1 where the optimizer must leave the step out, which is what `found_inf` of a fused
        optimizer takes; and 1 from the step on that ends the run.
        """
        if self._stop_after == 1 and counts is None:  # the usual case, in one small operation
            self._frozen = torch.maximum(self._frozen, bad)
            return self._frozen, self._frozen
        counted = bad if counts is None else bad * counts
        self._in_a_row = (self._in_a_row + 1) * counted
        self._frozen = torch.maximum(self._frozen, (self._in_a_row >= self._stop_after).float())
        return torch.maximum(bad, self._frozen), self._frozen

    def kept(self, step: int) -> KeptStep | None:
        """What is needed to repeat a step; None where it was too long ago."""
        return self._kept.get(step)
