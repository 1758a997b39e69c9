"""AdamW that never applies a non-finite gradient, its learning rate, and the scale of the loss for fp16."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankscope.train.config import TrainingConfig

_FIRST_SCALE = 65536.0
_GROWTH_EVERY = 2000


def make_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    """Weight decay for matrices only. Fused, so that clipping and skipping a bad step happen inside its kernel."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=training.betas, eps=training.adam_eps, fused=True)


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Of a step counted from 0: a straight rise, then half a cosine down to the lowest rate at the last step."""
    if step < training.warmup_steps:
        return training.learning_rate * (step + 1) / training.warmup_steps
    length = max(1, training.max_steps - 1 - training.warmup_steps)
    progress = min(1.0, (step - training.warmup_steps) / length)
    low = training.min_learning_rate
    return low + (training.learning_rate - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


def local_squared_norm(parameters: Iterable[nn.Parameter], device: torch.device) -> Tensor:
    """The sum of squares of this rank's own gradients, on the device, in fp32."""
    gradients = [_local(p.grad) for p in parameters if p.grad is not None]
    gradients = [gradient for gradient in gradients if gradient.numel()]
    if not gradients:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(gradients, 2.0)).float().square().sum()


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


class GatedStep:
    """Steps the optimizer unless a gradient is not finite, decided on the device: the host does not wait for it."""

    def __init__(self, optimizer: torch.optim.AdamW, max_grad_norm: float) -> None:
        self._optimizer = optimizer
        self._max_norm = max_grad_norm

    def apply(self, norm: Tensor, loss_scale: Tensor | None, skip: Tensor) -> None:
        """`norm` is that of the true gradients, without the loss scale; `skip` is 1 where nothing may change."""
        divisor = torch.ones_like(norm) if self._max_norm == 0 else (norm / self._max_norm).clamp(min=1.0)
        if loss_scale is not None:
            divisor = divisor * loss_scale
        # What GradScaler does too: the fused kernel divides by one and does nothing where the other is set.
        self._optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        self._optimizer.found_inf = skip  # type: ignore[attr-defined]
        self._optimizer.step()


class LossScale:
    """For fp16: halved after a step that overflowed, doubled after 2,000 that did not; on the device throughout."""

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), _FIRST_SCALE, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, skipped: Tensor) -> None:
        torch._amp_update_scale_(self.value, self._good_steps, skipped, 2.0, 0.5, _GROWTH_EVERY)

    def state_dict(self) -> dict[str, float]:
        return {"value": float(self.value), "good_steps": float(self._good_steps)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value.fill_(state["value"])
        self._good_steps.fill_(int(state["good_steps"]))
