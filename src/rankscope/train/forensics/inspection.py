"""Looks at every value that one repeated step makes, module by module, and remembers the first that is not finite."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rankscope.train.forensics.findings import BadTensor, FirstBad
from rankscope.train.forensics.watch import Batch
from rankscope.train.state.tensors import plain_name

_FRAMES = 8
_NOT_SHOWN = (
    "<",
    os.path.dirname(os.path.abspath(__file__)),
    os.path.dirname(os.path.abspath(torch.__file__)),
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
)


class Inspection:
    """Hooks on all modules of a model, from construction to `close`. Waits for the device at each of them."""

    def __init__(self, model: nn.Module, values_shown: int = 5) -> None:
        self.first: FirstBad | None = None
        self.first_backward: FirstBad | None = None
        self.bad_inputs: list[BadTensor] = []
        self._gradients: dict[str, BadTensor] = {}
        self._order = [plain_name(name) for name, _ in model.named_parameters()]
        self._shown = values_shown
        self._micro = -1
        self._samples: tuple[int, ...] = ()
        self._rows = 0
        self._hooked: set[int] = set()
        self._removable: list[Any] = []
        for name, module in model.named_modules():
            self._watch(plain_name(name), module)

    def close(self) -> None:
        for handle in self._removable:
            handle.remove()
        self._removable.clear()

    @property
    def bad_gradients(self) -> tuple[BadTensor, ...]:
        """Of parameters, of this rank alone, in the model's own order, which is that of the forward pass."""
        return tuple(self._gradients[name] for name in self._order if name in self._gradients)

    def following(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the inspection learns which one is under way."""
        for number, batch in enumerate(batches):
            self._micro = number
            self._samples = tuple(int(sample) for sample in batch.sample_ids)
            self._rows = len(self._samples)
            for name, tensor in (("inputs", batch.inputs), ("targets", batch.targets)):
                if (bad := described(name, tensor, self._shown)) is not None:
                    self.bad_inputs.append(bad)
            yield batch

    def _watch(self, name: str, module: nn.Module) -> None:
        kind = _kind(module)

        def before(_module: nn.Module, arguments: Any) -> None:
            self._follow_parameters(name, module)
            for tensor in _tensors(arguments):
                self._forward(name, kind, "input", tensor)

        def after(_module: nn.Module, _arguments: Any, output: Any) -> None:
            for tensor in _tensors(output):
                self._forward(name, kind, "output", tensor)
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_at(name, kind))  # type: ignore[no-untyped-call]

        self._removable.append(module.register_forward_pre_hook(before))
        self._removable.append(module.register_forward_hook(after))

    def _forward(self, name: str, kind: str, what: Literal["input", "output"], tensor: Tensor) -> None:
        if self.first is None and (bad := described(name, tensor, self._shown)) is not None:
            self.first = self._first_bad(name, kind, what, tensor, bad)

    def _backward_at(self, name: str, kind: str) -> Callable[[Tensor], None]:
        def arrived(gradient: Tensor) -> None:
            if self.first_backward is None and (bad := described(name, gradient, self._shown)) is not None:
                self.first_backward = self._first_bad(name, kind, "gradient", gradient, bad)

        return arrived

    def _follow_parameters(self, name: str, module: nn.Module) -> None:
        """Here and not at the start: FSDP puts the whole parameters into the modules only as each is entered."""
        prefix = f"{name}." if name else ""
        for inner, parameter in module.named_parameters():
            if isinstance(parameter, DTensor) or not parameter.requires_grad or id(parameter) in self._hooked:
                continue
            self._hooked.add(id(parameter))
            gradient_arrived = self._gradient_of(plain_name(prefix + inner))
            self._removable.append(parameter.register_hook(gradient_arrived))  # type: ignore[no-untyped-call]

    def _gradient_of(self, name: str) -> Callable[[Tensor], None]:
        def arrived(gradient: Tensor) -> None:
            if name not in self._gradients and (bad := described(name, gradient, self._shown)) is not None:
                self._gradients[name] = bad

        return arrived

    def _first_bad(
        self, name: str, kind: str, what: Literal["input", "output", "gradient"], tensor: Tensor, bad: BadTensor
    ) -> FirstBad:
        by_row = tensor.dim() >= 2 and tensor.shape[0] == self._rows
        samples = self._samples
        if by_row:
            rows = (~torch.isfinite(tensor.detach())).flatten(1).any(1).tolist()
            samples = tuple(sample for sample, is_bad in zip(samples, rows, strict=True) if is_bad)
        return FirstBad(name, kind, what, bad, max(self._micro, 0), samples, by_row, program_frames())


def described(name: str, tensor: Tensor, values_shown: int = 5) -> BadTensor | None:
    """The tensor, if any of its values is not finite."""
    local = tensor.detach()
    if isinstance(local, DTensor):
        local = local.to_local()
    if not local.is_floating_point() or bool(torch.isfinite(local).all()):
        return None
    nan = int(torch.isnan(local).sum())
    inf = int(torch.isinf(local).sum())
    flat = local.flatten()
    from_there = int((~torch.isfinite(flat)).to(torch.uint8).argmax())
    some = tuple(value_text(value) for value in flat[from_there : from_there + values_shown].float().tolist())
    return BadTensor(name, tuple(tensor.shape), nan, inf, local.numel(), some)


def program_frames() -> tuple[tuple[str, int, str], ...]:
    """The line that called whatever is being looked at, and the lines around it: neither torch's nor this package's."""
    found: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_SHOWN):
            found.append((file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def value_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.4g}"


def _kind(module: nn.Module) -> str:
    """The name of its class, also where fully_shard has put one of its own over it."""
    own = type(module)
    return own.__bases__[-1].__name__ if isinstance(module, FSDPModule) else own.__name__


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
