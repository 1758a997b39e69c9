"""Repeats a step that was not finite, on all ranks together, and finds out where it began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankscope.probe.page import own_pages
from rankscope.train.forensics import dump
from rankscope.train.forensics.findings import BadTensor, Incident, RankFindings, concluded, number_text
from rankscope.train.forensics.inspection import Inspection, described, program_frames
from rankscope.train.forensics.report import headline, report
from rankscope.train.forensics.watch import Batch, KeptStep
from rankscope.train.state.tensors import bare, plain_name

EXIT_CODE = 76
"""Of a run that a non-finite value ended."""
_MEETING = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class Repeatable:
    """How the loop computes a step."""

    model: nn.Module
    gradients: Callable[[int, Iterable[Batch]], Tensor]
    """Fills the parameters' gradients, empty before, from the micro batches of the step of that number, reduced over
    the ranks as ever; returns this rank's own loss. Weights and optimizer are left alone."""
    module_by_module: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """While it lasts, the model computes without compiled kernels, so that each module can be looked at."""


class Investigation:
    """Made before the first step by all ranks, since it makes a process group of its own."""

    def __init__(
        self,
        repeatable: Repeatable,
        *,
        place: str,
        directory: Path,
        context: Mapping[str, Any],
        values_shown: int = 5,
        layers_shown: int = 10,
    ) -> None:
        """`place` is the rank as lines of the log call it; `context` goes into the file that a step is replayed from,
        and is plain data that JSON can hold."""
        self._repeatable = repeatable
        self._place = place
        self._directory = directory
        self._context = context
        self._values_shown = values_shown
        self._layers_shown = layers_shown
        self._group: dist.ProcessGroup | None = None
        self._rank, self._world = 0, 1
        if dist.is_available() and dist.is_initialized():
            self._rank, self._world = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo", timeout=_MEETING, group_desc="forensics")

    def run(self, kept: KeptStep, loss: float, grad_norm: float, say: Callable[[str], None]) -> Incident:
        """Called by every rank at the same step, with the weights that the step was computed with.

        The rank where it began writes the files, says the report, and leaves a note for the launcher. `loss` is the
        mean of all ranks. Gradients are those of the repeated step afterwards.
        """
        parameters = {plain_name(name): value for name, value in bare(self._repeatable.model).named_parameters()}
        own = self._repeated(kept, parameters)
        ranks = self._gathered(own)
        writer = concluded(kept.step, loss, grad_norm, ranks, ()).shown.rank
        gradients, bad = self._reduced(parameters, keep=writer == self._rank)
        weights = self._whole(parameters, keep=writer == self._rank)
        incident = concluded(kept.step, loss, grad_norm, ranks, bad)
        if self._rank == writer:
            saved = dump.write(self._directory, incident, kept, weights, gradients, self._context)
            say(report(incident, saved, layers_shown=self._layers_shown))
        if self._rank in incident.origins or (not incident.origins and self._rank == writer):
            _note(incident, own)
        return incident

    def _repeated(self, kept: KeptStep, parameters: Mapping[str, Tensor]) -> RankFindings:
        bad_parameters = _all_described(parameters, self._values_shown)
        inspection = Inspection(bare(self._repeatable.model), self._values_shown)
        kept.restore_random_state()
        try:
            with torch.compiler.set_stance("force_eager"), self._repeatable.module_by_module():
                again = self._repeatable.gradients(kept.step, inspection.following(list(kept.batches)))
        finally:
            inspection.close()
        return RankFindings(
            rank=self._rank,
            place=self._place,
            loss_then=float("nan") if kept.local_loss is None else float(kept.local_loss),
            loss_again=float(again),
            samples=tuple(int(sample) for batch in kept.batches for sample in batch.sample_ids),
            bad_inputs=tuple(inspection.bad_inputs),
            bad_parameters=bad_parameters,
            first=inspection.first,
            first_backward=None if inspection.first is not None else inspection.first_backward,
            bad_gradients=inspection.bad_gradients,
        )

    def _reduced(self, parameters: Mapping[str, Tensor], *, keep: bool) -> tuple[dict[str, Tensor], list[BadTensor]]:
        """Whole gradients after the reduction, in the memory of the rank that writes them, and the bad ones of them."""
        kept: dict[str, Tensor] = {}
        bad: list[BadTensor] = []
        for name, parameter in parameters.items():
            if parameter.grad is None:
                continue
            gradient = _whole(parameter.grad)
            if (found := described(name, gradient, self._values_shown)) is not None:
                bad.append(found)
            if keep:
                kept[name] = gradient.cpu()
        return kept, bad

    def _whole(self, parameters: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            value = _whole(parameter)
            if keep:
                kept[name] = value.cpu()
        return kept

    def _gathered(self, own: RankFindings) -> list[RankFindings]:
        if self._group is None:
            return [own]
        everyone: list[Any] = [None] * self._world
        dist.all_gather_object(everyone, own, group=self._group)
        return everyone


def _whole(tensor: Tensor) -> Tensor:
    """All ranks take part where it is sharded."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def _all_described(parameters: Mapping[str, Tensor], values_shown: int) -> tuple[BadTensor, ...]:
    found = (described(name, value, values_shown) for name, value in parameters.items())
    return tuple(bad for bad in found if bad is not None)


def _note(incident: Incident, own: RankFindings) -> None:
    """For the launcher, where one watches; the line it shows is the one that called the first bad module."""
    found = own.first or own.first_backward
    tensors = own.bad_parameters or own.bad_inputs or own.bad_gradients or incident.bad_gradients
    for page in own_pages:
        page.non_finite(
            incident.kind,
            incident.step,
            "nan" if headline(incident).startswith("NaN") else "inf",
            [tensor.name for tensor in tensors[:16]],
            len(tensors),
            local=bool(incident.origins),
            detail=f"{headline(incident)}; loss {number_text(own.loss_then)}, gradient norm "
            f"{number_text(incident.grad_norm)}, samples {', '.join(map(str, own.samples[:16]))}",
            frames=list(found.frames if found is not None and found.frames else program_frames()),
        )
