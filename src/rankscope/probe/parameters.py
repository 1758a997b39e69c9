"""Reads gradients and parameters of a model, and finds their names; when something is amiss, or in samples."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable
from typing import Any

_MOST_NAMES = 16
_SMALL = 4096
"""Values that are added up in about a microsecond."""


def plain(tensor: Any) -> Any:
    """The part of a tensor that this rank holds: of a sharded one, its shard."""
    return getattr(tensor, "_local_tensor", tensor)


def readable(tensor: Any) -> bool:
    """Dense values of floating point on a CPU or a CUDA device."""
    return (
        tensor is not None
        and tensor.is_floating_point()
        and not tensor.is_sparse
        and not tensor.is_mkldnn
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.numel() > 0
    )


def first_bad_value(torch: Any, tensor: Any) -> str | None:
    """`nan`, `inf` or `-inf`; None where all values are finite. Waits for a GPU."""
    with torch.no_grad():
        values = plain(tensor).detach()
        bad = ~torch.isfinite(values)
        if not bool(bad.any()):
            return None
        return word(float(values[bad].reshape(-1)[0]))


def word(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def bad_momentum(torch: Any, optimizer: Any) -> str | None:
    """The name of a running mean of gradients that is not finite: a finite gradient never makes it so."""
    for state in list(optimizer.state.values()):
        for name in ("exp_avg", "momentum_buffer"):
            kept = state.get(name) if isinstance(state, dict) else None
            if kept is not None and readable(plain(kept)) and first_bad_value(torch, kept) is not None:
                return name
    return None


def optimizer_parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def names_of(torch: Any, parameters: Iterable[Any], modules: Iterable[Any]) -> dict[int, str]:
    """id → name in its model, from the given modules, else from whatever modules the process has."""
    wanted = {id(parameter) for parameter in parameters}
    found: dict[int, str] = {}
    _collect_names(modules, wanted, found)
    if len(found) < len(wanted):
        kind = torch.nn.Module
        # type() and not isinstance(): proxies answer for their class, and may do work for it.
        present = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        inner = {id(child) for each in present for child in vars(each).get("_modules", {}).values()}
        _collect_names((each for each in present if id(each) not in inner), wanted, found)
    return found


def _collect_names(modules: Iterable[Any], wanted: set[int], found: dict[int, str]) -> None:
    for module in modules:
        for name, parameter in module.named_parameters():
            if id(parameter) in wanted and len(name) > len(found.get(id(parameter), "")):
                found[id(parameter)] = name.removeprefix("module.").replace("_orig_mod.", "")


def bad_names(torch: Any, tensors: list[tuple[Any, Any]], modules: Iterable[Any]) -> tuple[list[str], int, str]:
    """Of (parameter, tensor to look at) those that are not finite: first names, how many, and the first bad value."""
    bad, value = [], ""
    for parameter, tensor in tensors:
        seen = first_bad_value(torch, tensor) if readable(plain(tensor)) else None
        if seen is not None:
            bad.append(parameter)
            value = value or seen
    if not bad:
        return [], 0, ""
    names = names_of(torch, bad, modules)
    return [names.get(id(each), _shape_name(each)) for each in bad[:_MOST_NAMES]], len(bad), value


def _shape_name(parameter: Any) -> str:
    return "a parameter of shape " + "x".join(map(str, parameter.shape))


def sentinel_of(parameters: list[Any]) -> Any | None:
    """A small parameter near the input of the model: whatever goes wrong in a backward pass flows on to there."""
    first = [each for each in parameters if each.requires_grad and readable(plain(each))]
    first = first[: max(4, len(first) // 8)]
    # Of small ones the nearest, not the smallest: that may be the last of the model.
    small = next((each for each in first if each.numel() <= _SMALL), None)
    return small if small is not None else min(first, key=lambda each: each.numel(), default=None)


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [each for reference in references if (each := reference()) is not None]
