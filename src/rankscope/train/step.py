"""One optimizer step: micro batches, one small exchange between ranks, the change of the weights. It never waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.train.config import TrainingConfig
from rankscope.train.faults import Fault
from rankscope.train.forensics.watch import FiniteWatch
from rankscope.train.optimizer import GatedStep, LossScale, learning_rate, local_squared_norm
from rankscope.train.spread import SpreadModel

LOWEST_SCALE = 1.0
"""A loss scale that has come down to this explains no overflow any more."""


class Batch(Protocol):
    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def sample_ids(self) -> Tensor: ...


Hear = Callable[[str], None]
"""Is told of the stages of the very first batch."""


def _silent(_stage: str) -> None:
    return


class TrainStep:
    def __init__(
        self,
        spread: SpreadModel,
        optimizer: torch.optim.AdamW,
        training: TrainingConfig,
        device: torch.device,
        world_size: int,
        *,
        fault: Fault,
        watch: FiniteWatch | None,
    ) -> None:
        self._spread = spread
        self._optimizer = optimizer
        self._gated = GatedStep(optimizer, training.max_grad_norm)
        self._training = training
        self._device = device
        self._world_size = world_size
        self._fault = fault
        self._watch = watch
        self._parameters = list(spread.model.parameters())
        self.loss_scale = LossScale(device) if spread.model.dtype == torch.float16 else None

    def run(self, step: int, batches: Iterator[Batch], *, stop_wanted: bool, hear: Hear = _silent) -> Tensor:
        """Makes the step. Returns, still on the device: the mean loss of all ranks, the gradient norm, how many ranks
        were asked to stop, 1 where the weights were left alone, 1 from the step on that ends the run."""
        self._fault.strike(step)
        if self._watch is not None:
            self._watch.begin(step)
        hear("begun")
        loss = self.gradients(step, self._taken(batches), hear)
        mean_loss, norm, stops = self._exchange(loss, stop_wanted)
        hear("optimizer")
        scale = None if self.loss_scale is None else self.loss_scale.value
        if scale is not None:
            norm = norm / scale
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._training, step)
        overflowed = (~torch.isfinite(norm)).float()
        skip, ended = overflowed, torch.zeros_like(overflowed)
        if self._watch is not None:
            self._watch.local_loss(loss)
            counts = None if scale is None else (scale <= LOWEST_SCALE).float()
            skip, ended = self._watch.gate(overflowed, counts)
        self._gated.apply(norm, scale, skip)
        if self.loss_scale is not None:
            self.loss_scale.update(overflowed)
        if self._spread.copies is not None:
            self._spread.copies.refresh()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack((mean_loss, norm, stops, skip, ended))

    def gradients(self, step: int, batches: Iterable[Batch], hear: Hear = _silent) -> Tensor:
        """Fills the gradients from the step's micro batches, reduced over the ranks; returns this rank's own loss."""
        spread, count = self._spread, self._training.grad_accum_nums
        self._fault.aim(step)
        scale: Tensor | float = 1.0 / count if self.loss_scale is None else self.loss_scale.value / count
        total = torch.zeros((), device=self._device)
        for micro, batch in enumerate(batches):
            hear("data moved")
            with spread.micro_batch(last=micro == count - 1):
                loss = spread.called(batch.inputs, batch.targets, scale)
                hear("forward completed")
                loss.backward()
                hear("backward completed")
            if spread.copies is not None:
                spread.copies.collect()
            total += loss.detach()
        return total if self.loss_scale is None else total / self.loss_scale.value

    @contextlib.contextmanager
    def module_by_module(self) -> Iterator[None]:
        """While it lasts, every module of the model is called by itself, in plain torch, so that hooks see it."""
        with self._spread.model.plainly():
            yield

    def _taken(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for _ in range(self._training.grad_accum_nums):
            batch = next(batches)
            if self._watch is not None:
                self._watch.saw(batch)
            yield batch

    def _exchange(self, loss: Tensor, stop_wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss, gradient norm and wishes to stop, from one sum of three numbers over all ranks.

        The loss has to be summed for the log, and with FSDP the norm for clipping; the wish to stop rides along, so
        that all ranks learn of it with the values of the same step and leave together.
        """
        squares = local_squared_norm(self._parameters, self._device) / self._spread.replicas
        values = torch.stack((loss / self._world_size, squares, torch.full_like(squares, float(stop_wanted))))
        if self._world_size > 1:
            dist.all_reduce(values)
        return values[0], values[1].sqrt(), values[2]
