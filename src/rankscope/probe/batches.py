"""Remembers the tensors that were fed to the model last, to look at them when a loss turns out not to be finite."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

MOST_TENSORS = 8
_DEEPEST = 3
_KEPT_BYTES = 32 << 20
"""Of a batch on the host; a larger one is only remembered as long as the program itself keeps it."""


class Batches:
    """Batches from loaders and inputs of models. Holds them alive for a step only where `keep` is set: on a GPU the
    loss is read a step late, when the program may have let go of them."""

    def __init__(self) -> None:
        self.keep = False
        self.fed: deque[tuple[int, str | Sequence[str], Sequence[Any]]] = deque(maxlen=4)
        """Step; names of tensors, or the one name of the sequence that they are; the tensors or references to them."""

    def note(self, step: int, label: str, fed: Any) -> None:
        found = list(_tensors(label, fed, 0))[:MOST_TENSORS]
        if found:
            keep = self.keep and all(t.is_cpu and not t.is_shared() for _, t in found)
            keep = keep and sum(t.numel() * t.element_size() for _, t in found) <= _KEPT_BYTES
            names = [name for name, _ in found]
            self.fed.append((step, names, [t if keep else weakref.ref(t) for _, t in found]))

    def came(self, step: int, batch: weakref.ref[Any] | tuple[weakref.ref[Any], ...]) -> None:
        """What a loader gave: a tensor, or a sequence of tensors."""
        self.fed.append((step, ("batch",), (batch,)) if isinstance(batch, weakref.ref) else (step, "batch", batch))

    def bad(self, torch: Any, step: int) -> tuple[list[str], str] | None:
        """Names of tensors of that step that hold NaN, and where in the batch; None where none does.

        Infinities are no sign: masks are made of them."""
        names: list[str] = []
        detail = ""
        for fed_at, named, tensors in self.fed:
            if fed_at != step:
                continue
            for number, kept in enumerate(tensors):
                name = f"{named}[{number}]" if isinstance(named, str) else named[number]
                # What was only referred to may hold tensors itself.
                for found, tensor in _tensors(name, kept() if isinstance(kept, weakref.ref) else kept, 1):
                    if found in names or not (tensor.is_cpu or tensor.is_cuda):
                        continue
                    with torch.no_grad():
                        bad = torch.isnan(tensor.detach())
                        count = int(bad.sum())
                    if count:
                        names.append(found)
                        detail = detail or _detail(found, bad, count)
        return (names, detail) if names else None


def _detail(name: str, bad: Any, count: int) -> str:
    text = f"{count} of {bad.numel()} values of {name}"
    if bad.dim() >= 2:
        rows = bad.reshape(bad.shape[0], -1).any(1).nonzero().reshape(-1).tolist()
        shown = ", ".join(map(str, rows[:4])) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
        text += f", in sample{'' if len(rows) == 1 else 's'} {shown} of {bad.shape[0]} in the batch"
    return text


def _tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "is_floating_point"):
        if value.is_floating_point():
            yield name, value
    elif depth < _DEEPEST:
        if isinstance(value, dict):
            for key, each in list(value.items())[:MOST_TENSORS]:
                yield from _tensors(f"{name}[{str(key)[:40]!r}]", each, depth + 1)
        elif isinstance(value, (list, tuple)):
            for number, each in enumerate(value[:MOST_TENSORS]):
                yield from _tensors(f"{name}[{number}]", each, depth + 1)
