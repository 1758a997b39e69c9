"""Environment, versions and GPUs of a job: what all ranks share once, and of each rank only what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.evidence.model import Gpu
from rankscope.report.plain_text import plain
from rankscope.report.words.phrases import ranks_text


def status_lines(
    environments: Mapping[int, Mapping[str, str]], versions: Mapping[str, str], gpus: Sequence[Gpu] | str
) -> list[str]:
    """`environments` are masked, rank → variables."""
    shared = shared_variables(environments)
    counted = _counted_variables(environments)
    lines = [
        "versions: " + ", ".join(f"{name} {value}" for name, value in versions.items() if name != "executable"),
        f"GPUs: {_gpus(gpus)}",
        f"environment of {ranks_text(environments)}: " + (_pairs({**counted, **shared}) or "could not be read"),
    ]
    alike: dict[str, list[int]] = {}
    for rank, variables in sorted(environments.items()):
        own = _pairs({name: value for name, value in variables.items() if name not in shared and name not in counted})
        if own:
            alike.setdefault(own, []).append(rank)
    lines += [f"  {ranks_text(ranks)} alone: {own}" for own, ranks in alike.items()]
    return [plain(line) if not line.startswith("  ") else f"  {plain(line)}" for line in lines]


def shared_variables(environments: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """The variables that every rank has, with the same value."""
    everyone = list(environments.values())
    if not everyone:
        return {}
    return {
        name: value for name, value in everyone[0].items() if all(other.get(name) == value for other in everyone[1:])
    }


def _counted_variables(environments: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """The variables that only count the ranks, such as RANK, with their first and last value."""
    ranks = sorted(environments)
    counted: dict[str, str] = {}
    for name in environments[ranks[0]] if len(ranks) > 1 else ():
        values = [environments[rank].get(name, "") for rank in ranks]
        if not all(value.isdecimal() for value in values):
            continue
        if len({int(value) - rank for value, rank in zip(values, ranks, strict=True)}) == 1:
            counted[name] = f"{values[0]}..{values[-1]}"
    return counted


def _pairs(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _gpus(gpus: Sequence[Gpu] | str) -> str:
    if isinstance(gpus, str):
        return gpus
    if not gpus:
        return "none"
    return "; ".join(f"{gpu.index} {gpu.name}{_memory(gpu)}" for gpu in gpus)


def _memory(gpu: Gpu) -> str:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return ""
    free = gpu.memory_total_bytes - gpu.memory_used_bytes
    return f" ({free / (1 << 30):.0f} of {gpu.memory_total_bytes / (1 << 30):.0f} GB free)"
