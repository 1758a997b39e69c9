"""One optimizer step: micro batches, one small exchange between ranks, and the weights' change. Never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.train.config import TrainingConfig
from rankscope.train.faults import Fault
from rankscope.train.optimizer import GatedStep, LossScale, learning_rate, local_squared_norm
from rankscope.train.spread import SpreadModel


class Batch(Protocol):
    @property
    def inputs(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def sample_ids(self) -> Tensor: ...


class FirstBatch(Protocol):
    """Hears of the stages of the very first batch."""

    def __call__(self, stage: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StepResult:
    values: Tensor
    """On the device: mean loss of all ranks, gradient norm, how many ranks were asked to stop, 1 if skipped."""
    local_loss: Tensor
    """On the device: this rank's own, before anything was reduced."""
    samples: Tensor
    """Which samples this rank's micro batches held."""


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
        fault: Fault,
    ) -> None:
        self._spread = spread
        self._optimizer = optimizer
        self._gated = GatedStep(optimizer, training.max_grad_norm)
        self._training = training
        self._device = device
        self._world_size = world_size
        self._fault = fault
        self._parameters = list(spread.model.parameters())
        self.loss_scale = LossScale(device) if spread.model.dtype == torch.float16 else None

    def run(
        self, step: int, batches: Iterator[Batch], *, stop_wanted: bool, first_batch: FirstBatch = _silent
    ) -> StepResult:
        self._fault.begin(step)
        loss, samples = self._gradients(batches, first_batch)
        values = self._exchange(loss, stop_wanted)
        first_batch("optimizer")
        norm = values[1].sqrt()
        if self.loss_scale is not None:
            norm = norm / self.loss_scale.value
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._training, step)
        skipped = self._gated.apply(norm, None if self.loss_scale is None else self.loss_scale.value)
        if self.loss_scale is not None:
            self.loss_scale.update(skipped)
        if self._spread.copies is not None:
            self._spread.copies.refresh()
        return StepResult(torch.stack((values[0], norm, values[2], skipped)), loss, samples)

    def forget_gradients(self) -> None:
        """After the step, once nobody wants to look at them any more."""
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self, batches: Iterator[Batch], first_batch: FirstBatch) -> tuple[Tensor, Tensor]:
        """Fills the gradients from the step's micro batches; returns the rank's own mean loss and its samples."""
        spread, count = self._spread, self._training.grad_accum_nums
        scale: Tensor | float = 1.0 / count if self.loss_scale is None else self.loss_scale.value / count
        total = torch.zeros((), device=self._device)
        samples: list[Tensor] = []
        for micro in range(count):
            batch = next(batches)
            first_batch("data moved to the device")
            with spread.micro_batch(last=micro == count - 1):
                first_batch("forward started")
                loss = spread.called(batch.inputs, batch.targets, scale)
                first_batch("forward completed")
                loss.backward()
                first_batch("backward completed")
            if spread.copies is not None:
                spread.copies.collect()
            total += loss.detach()
            samples.append(batch.sample_ids)
        if self.loss_scale is not None:
            total = total / self.loss_scale.value
        return total, torch.cat(samples)

    def _exchange(self, loss: Tensor, stop_wanted: bool) -> Tensor:
        """Mean loss, squared gradient norm and wishes to stop, in one sum of three numbers over all ranks.

        The loss has to be summed for the log, and with FSDP the norm for clipping; the wish to stop rides along, so
        that all ranks learn of it with the values of the same step and leave together.
        """
        norm = local_squared_norm(self._parameters, self._device)
        shares = self._spread.replicas
        values = torch.stack((loss / self._world_size, norm / shares, torch.full_like(norm, float(stop_wanted))))
        if self._world_size > 1:
            dist.all_reduce(values)
        return values
