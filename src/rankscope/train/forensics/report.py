"""The report that people read when a value is not finite. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.train.forensics.findings import BadTensor, FirstBad, Incident, RankFindings, number_text

WIDE = "=" * 80
NARROW = "=" * 40
_SAMPLES_SHOWN = 16


def report(incident: Incident, saved: Sequence[str], *, layers_shown: int = 10) -> str:
    """The whole text, about the rank where it began; `saved` are lines on the files that were written."""
    rank = incident.shown
    worst = _worst(incident)
    lines = [
        WIDE,
        f"{worst} {incident.kind.upper()} DETECTED [{rank.place}]",
        WIDE,
        f"Step: {incident.step}",
        f"Loss: {number_text(rank.loss_then)}",
        f"Gradient Norm: {number_text(incident.grad_norm)}",
        "",
        NARROW,
        "WHERE IT BEGAN:",
        NARROW,
        *_beginning(incident),
        "",
        NARROW,
        "PROBLEMATIC TENSORS:",
        NARROW,
        *_section("Inputs", rank.bad_inputs, layers_shown, "Values"),
        *_section("Parameters", rank.bad_parameters, layers_shown, "Values"),
        *_section("Gradients", _gradients(incident), layers_shown, "Grad values"),
        NARROW,
        "",
        *saved,
        "The step was not applied: weights and optimizer are as they were before it.",
    ]
    return "\n".join(lines)


def headline(incident: Incident) -> str:
    """One sentence: what, when, where, with which samples."""
    rank = incident.shown
    where = f"rank {rank.rank}" if incident.origins else "no single rank"
    found = rank.first or rank.first_backward
    at = f", {_at(found)}" if found is not None and incident.origins else ""
    return f"{_worst(incident)} {incident.kind} in step {incident.step}, begun on {where}{at}"


def first_line(found: FirstBad) -> str:
    """What is said of the first bad value."""
    tensor = found.tensor
    counts = f"{tensor.nan:,} NaN and {tensor.inf:,} Inf of {tensor.total:,} values, shape {list(tensor.shape)}"
    return f"{_at(found)}: {counts}"


def _at(found: FirstBad) -> str:
    name = f"{found.module} ({found.kind})" if found.module else f"the model itself ({found.kind})"
    match found.what:
        case "output":
            return f"the output of {name}"
        case "input":
            around = found.module.rpartition(".")[0]
            return f"the arithmetic of {around or 'the model itself'}, before {name} was called"
        case "gradient":
            return f"the gradient that reached the output of {name} in the backward pass"


def _beginning(incident: Incident) -> list[str]:
    lines = []
    rank = incident.shown
    if not incident.origins:
        lines.append("No rank's own computation shows it.")
        if incident.bad_gradients:
            lines.append("The gradients of every rank were finite, and their sum is not: it overflowed.")
    elif len(incident.origins) == len(incident.ranks) > 1:
        lines.append(f"On all {len(incident.ranks)} ranks alike")
    else:
        names = ", ".join(f"rank {other.rank} [{other.place}]" for other in incident.ranks if _began(incident, other))
        alone = "before the reduction; the other ranks were finite" if _others(incident) else "the only one"
        lines.append(f"On {names}, {alone}")
    found = rank.first or rank.first_backward
    if found is not None:
        lines.append(f"First: {first_line(found)}")
        if found.frames:
            file, line, function = found.frames[0]
            lines.append(f"Called at: {file}:{line}, in {function}")
        lines.append(f"Micro batch: {found.micro_batch}")
        exact = "Samples" if found.rows_told_apart else "Samples of that micro batch"
        lines.append(f"{exact}: {_samples(found.samples)}")
    lines.append(f"Samples of the rank in this step: {_samples(rank.samples)}")
    if not incident.reproduced:
        lines.append(
            "The step was repeated, without compiled kernels, and stayed finite: look at compiled kernels, at "
            "operations that are not deterministic, and at the hardware."
        )
    return lines


def _section(what: str, tensors: Sequence[BadTensor], shown: int, values: str) -> list[str]:
    if not tensors:
        return []
    worst = "NaN" if any(tensor.nan for tensor in tensors) else "Inf"
    lines = [f"⚠️  {what} with {worst} ({len(tensors)} layers):"]
    for tensor in tensors[:shown]:
        some = ", ".join(f"'{value}'" for value in tensor.values)
        more = ", ..." if tensor.total > len(tensor.values) else ""
        lines.append(f"  • {tensor.name} (shape: torch.Size({list(tensor.shape)}))")
        lines.append(f"    {values}: [{some}{more}]")
        lines.append(f"    NaN count: {tensor.nan}/{tensor.total}")
        if tensor.inf:
            lines.append(f"    Inf count: {tensor.inf}/{tensor.total}")
    if len(tensors) > shown:
        lines.append(f"  ... and {len(tensors) - shown} more, all in the files below")
    affected = ", ".join(f"'{tensor.name}'" for tensor in tensors[:shown])
    rest = ", ..." if len(tensors) > shown else ""
    lines += [
        "",
        f"Total layers with {worst} {what.lower()}: {len(tensors)}",
        f"Affected layers: [{affected}{rest}]",
    ]
    return lines


def _gradients(incident: Incident) -> tuple[BadTensor, ...]:
    return incident.bad_gradients or incident.shown.bad_gradients


def _worst(incident: Incident) -> str:
    tensors = [*_gradients(incident), *incident.shown.bad_parameters, *incident.shown.bad_inputs]
    found = incident.shown.first or incident.shown.first_backward
    if found is not None:
        tensors.append(found.tensor)
    only_inf = bool(tensors) and not any(tensor.nan for tensor in tensors)
    return "Inf" if only_inf else "NaN"


def _began(incident: Incident, rank: RankFindings) -> bool:
    return rank.rank in incident.origins


def _others(incident: Incident) -> bool:
    return len(incident.ranks) > len(incident.origins)


def _samples(samples: Sequence[int]) -> str:
    some = ", ".join(map(str, samples[:_SAMPLES_SHOWN]))
    left = len(samples) - _SAMPLES_SHOWN
    return f"{some} and {left} more" if left > 0 else some or "unknown"
