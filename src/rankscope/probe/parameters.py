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
_MOST_ROWS, _MOST_COLUMNS = 4096, 65_536
"""A matrix with more rows is one of the words of a vocabulary."""
_ROWS_READ = 256


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
    """Of parameters, those nearest to the model's input first, one near it whose gradient takes little time to look at:
    whatever goes wrong in a backward pass flows on to there."""
    first = [each for each in parameters if each.requires_grad and readable(plain(each))]
    first = first[: max(4, len(first) // 8)]
    # Of those the nearest, not the smallest: that may be the last of the model.
    for each, following in zip(first, [*first[1:], None], strict=True):
        if each.numel() <= _SMALL or (has_edges(plain(each)) and not _bias_shows_more(each, following)):
            return each
    return min(first, key=lambda each: each.numel(), default=None)


def has_edges(tensor: Any) -> bool:
    """A matrix on the CPU that is too large to be looked at whole, and of which a row and a column tell."""
    return (
        tensor.dim() > 1
        and tensor.numel() > _SMALL
        and tensor.shape[0] <= _MOST_ROWS
        and tensor.numel() // tensor.shape[0] <= _MOST_COLUMNS
        and bool(tensor.is_cpu)
    )


def edges(torch: Any, gradient: Any) -> Any:
    """Of a weight's gradient, the first row and the middle of every row, or of some where there are many: a value that
    is not finite in what a layer is given fills a column, one in the gradient that it gets fills a row."""
    rows = gradient.detach().reshape(gradient.shape[0], -1)
    apart = -(-rows.shape[0] // _ROWS_READ)
    return torch.cat((rows[0], rows[::apart, rows.shape[1] // 2]))


def _bias_shows_more(weight: Any, following: Any | None) -> bool:
    """A bias tells of every row; only some rows of a weight with many are read."""
    return weight.shape[0] > _ROWS_READ and following is not None and following.shape == weight.shape[:1]


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [each for reference in references if (each := reference()) is not None]
