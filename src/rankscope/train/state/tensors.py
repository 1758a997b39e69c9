"""Names for everything that a checkpoint holds, the same whatever wraps the model: DDP, FSDP, compile or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankscope.errors import UsageError
from rankscope.train.state.manifest import TensorForm

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """A parameter's or module's name without what torch.compile and activation checkpointing put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def bare(model: nn.Module) -> nn.Module:
    """The model that DDP and torch.compile wrap."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; tied ones once, under their first name."""
    inner = bare(model)
    kept = inner.state_dict().keys()
    named = {plain_name(name): parameter.detach() for name, parameter in inner.named_parameters()}
    named.update({plain_name(name): buffer for name, buffer in inner.named_buffers() if name in kept})
    return named


def optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer steps on, by name. Weights of its own (master copies) are named after their place in it."""
    names = {id(parameter): plain_name(name) for name, parameter in bare(model).named_parameters()}
    found: dict[str, Tensor] = {}
    for position, parameter in enumerate(_in_order(optimizer)):
        found[names.get(id(parameter), f"group.{position}")] = parameter
    return found


def master_copies(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights that only the optimizer has."""
    own = {id(parameter) for parameter in model.parameters()}
    return {name: tensor.detach() for name, tensor in optimized(model, optimizer).items() if id(tensor) not in own}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Per parameter, what the optimizer keeps for it; empty before its first step."""
    kept: dict[str, dict[str, Tensor]] = {}
    for name, parameter in optimized(model, optimizer).items():
        state = optimizer.state.get(parameter, {})
        kept[name] = {key: _as_tensor(value) for key, value in state.items() if value is not None}
    return kept if any(kept.values()) else {}


def empty_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, forms: Mapping[str, Mapping[str, TensorForm]]
) -> dict[str, dict[str, Tensor]]:
    """Tensors to load an optimizer's state into, sharded as the parameters are."""
    steps_on = optimized(model, optimizer)
    strange = next((name for name in forms if name not in steps_on), None)
    missing = next((name for name in steps_on if forms and name not in forms), None)
    if strange or missing:
        raise UsageError(
            f"the checkpoint's optimizer {'also has' if strange else 'does not have'} state for {strange or missing}: "
            "it was made with another optimizer or with other parameters frozen"
        )
    return {
        name: {key: _empty(steps_on[name], form) for key, form in entries.items()} for name, entries in forms.items()
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, kept: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Hands loaded state to the optimizer. Its own settings stay: the configuration decides them, not the past."""
    numbers = {name: number for number, name in enumerate(optimized(model, optimizer))}
    groups = optimizer.state_dict()["param_groups"]
    state = {numbers[name]: dict(entries) for name, entries in kept.items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def form(tensor: Tensor) -> TensorForm:
    return TensorForm(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def empty(form: TensorForm) -> Tensor:
    """A whole tensor of this form, on the CPU."""
    return torch.empty(form.shape, dtype=_dtype(form))


def shares(replicated: Mapping[str, Tensor], ranks: int) -> dict[str, int]:
    """Which rank saves which of the tensors that all ranks have, so that each writes about as many bytes."""
    load = [0] * ranks
    taken: dict[str, int] = {}
    for name in sorted(replicated, key=lambda name: (-replicated[name].nbytes, name)):
        rank = load.index(min(load))
        load[rank] += replicated[name].nbytes
        taken[name] = rank
    return taken


def _in_order(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)


def _empty(parameter: Tensor, form: TensorForm) -> Tensor:
    if form.shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=_dtype(form), requires_grad=False)
    if isinstance(parameter, DTensor) and form.shape:
        raise UsageError(f"the checkpoint's optimizer keeps a {form} tensor for a {tuple(parameter.shape)} parameter")
    return torch.zeros(form.shape, dtype=_dtype(form))


def _dtype(form: TensorForm) -> torch.dtype:
    dtype = getattr(torch, form.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
