"""`rankscope train --replay-nan FILE`: the saved step once more, in one process, looked into module by module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from rankscope.errors import UsageError
from rankscope.train.forensics.dump import SavedBatch, SavedStep, read_step
from rankscope.train.forensics.findings import FirstBad, number_text
from rankscope.train.forensics.inspection import Inspection, described
from rankscope.train.forensics.investigation import EXIT_CODE, Repeatable
from rankscope.train.forensics.report import first_line
from rankscope.train.state.tensors import model_tensors


def replay_saved(file: Path, build: Callable[[SavedStep], Repeatable], say: Callable[[str], None]) -> int:
    """Runs the step of the file again with the weights, samples and random numbers of the rank where it began, and
    says the first module whose output is not finite. Returns 76 where the step is bad again, 0 where it is not.

    `build` makes the model that the file was written for, in this process, with any weights.
    """
    saved = read_step(file)
    repeatable = build(saved)
    _load(saved, repeatable, file)
    rank = saved.incident.shown
    say(f"step {saved.incident.step} of rank {rank.rank}, samples {', '.join(map(str, rank.samples))}")
    bad_weights = [
        found.name for name, value in saved.parameters.items() if (found := described(name, value)) is not None
    ]
    device = next(repeatable.model.parameters()).device
    batches = [
        SavedBatch(batch.inputs.to(device), batch.targets.to(device), batch.sample_ids) for batch in saved.batches
    ]
    inspection = Inspection(repeatable.model)
    saved.kept.restore_random_state()
    try:
        with repeatable.module_by_module():
            loss = float(repeatable.gradients(saved.incident.step, inspection.following(batches)))
    finally:
        inspection.close()
    say(f"loss {number_text(loss)}, and when it happened {number_text(rank.loss_then)}")
    if bad_weights:
        say(f"weights that were not finite before the step: {', '.join(bad_weights)}")
    return _conclusion(inspection, say)


def _conclusion(inspection: Inspection, say: Callable[[str], None]) -> int:
    if inspection.first is not None:
        say(f"first module whose output is not finite: {_named(inspection.first)}")
        return EXIT_CODE
    if inspection.first_backward is not None:
        say("every output of the forward pass is finite")
        say(f"the backward pass is not: {_named(inspection.first_backward)}")
    if inspection.bad_gradients:
        names = [tensor.name for tensor in inspection.bad_gradients]
        say(f"gradients that are not finite: {', '.join(names)}")
    if inspection.first_backward is not None or inspection.bad_gradients:
        return EXIT_CODE
    say(
        "the step is finite this time: what it was came from the sum over the ranks, from compiled kernels, from "
        "operations that are not deterministic, or from the hardware"
    )
    return 0


def _named(found: FirstBad) -> str:
    exact = "samples" if found.rows_told_apart else "one of the samples"
    return f"{first_line(found)}; micro batch {found.micro_batch}, {exact} {', '.join(map(str, found.samples))}"


def _load(saved: SavedStep, repeatable: Repeatable, file: Path) -> None:
    here: dict[str, Tensor] = model_tensors(repeatable.model)
    for name, value in saved.parameters.items():
        if name not in here or here[name].shape != value.shape:
            raise UsageError(f"'{file}' was written by another model: {name} does not fit")
        here[name].copy_(value)
