"""Remembers what was fed to the model last, to look at it when a loss, a gradient or a parameter is not finite.

Nothing is looked at while all is well, but for samples that tell what this program's inputs are like.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rankscope.probe.beat import Beat

MOST_TENSORS = 8
_DEEPEST = 3
_KEPT_BYTES = 32 << 20
"""Of memory, for inputs that are kept; larger ones are remembered as long as the program itself keeps them."""
_KEPT_SHARED_BYTES = 2 << 20
"""The same, of shared memory: there is little of it, and each tensor in it has a file open."""
_KEPT_PASSES = 8
_MOST_PARTS = 64


class BadInputs(NamedTuple):
    step: int
    names: tuple[str, ...]
    value: str
    """`nan`, `inf` or `-inf`, of the first."""
    detail: str


class Batches:
    """Batches from loaders and inputs of models."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self.torch: Any = None
        self.keep = False
        """Whether a batch is held alive for a step: on a GPU the loss is read a step late, when the program may have
        let go of it."""
        self.fed: deque[tuple[int, str | Sequence[str], Sequence[Any]]] = deque(maxlen=4)
        """Step; names of tensors, or the one name of the sequence that they are; the tensors or references to them."""
        self._usual: set[str] = set()
        """Names of inputs that held such values while all was well: they do by design."""
        self._known = False
        """Inputs were looked at while all was well."""

    def note(self, step: int, label: str, fed: Any) -> None:
        found = list(_tensors(label, fed, 0))[:MOST_TENSORS]
        if found:
            keep = self.keep and all(t.is_cpu and not t.is_shared() for _, t in found)
            keep = keep and sum(t.numel() * t.element_size() for _, t in found) <= _KEPT_BYTES
            names = [name for name, _ in found]
            self.fed.append((step, names, [t if keep else weakref.ref(t) for _, t in found]))

    def bad(self, step: int, now: int) -> BadInputs | None:
        """What was fed in that step and is not finite, but for what is so by design. `now` is the step that is being
        made."""
        return self._bad(step, self._of(step, now), self._usual)

    def bad_before(self, step: int, steps: int) -> tuple[bool, BadInputs | None]:
        """Whether anything is left of what the model was fed in that many steps before this one; and what of it is not
        finite, but for what was so in steps before those, too."""
        kept = sorted(self._beat.kept, key=lambda each: each[0])
        usual = set(self._usual)
        for at, inputs in kept:
            if at < step - steps and (found := self._bad(at, _named("input", inputs), usual)) is not None:
                usual.update(found.names)
        last = [(at, inputs) for at, inputs in kept if step - steps <= at < step]
        bad = (self._bad(at, _named("input", inputs), usual) for at, inputs in last)
        return bool(last), next((found for found in bad if found is not None), None)

    def went_well(self, step: int) -> None:
        """Whatever this step was fed is as it should be."""
        self._known = True
        found = self._bad(step, self._of(step, step), self._usual)
        if found is not None:
            self._usual.update(found.names)

    def passes_to_keep(self, inputs: tuple[Any, ...]) -> int:
        """How many such inputs of a model may be kept alive beyond their pass: none where that would hold much, or more
        than the values, alive."""
        sizes = [0, 0]
        for number, part in enumerate(_parts(inputs, 0)):
            if part is None or isinstance(part, (bool, int, float, str)):
                continue
            if number >= _MOST_PARTS or type(part) is not self.torch.Tensor or part.requires_grad or not part.is_cpu:
                return 0
            sizes[part.is_shared()] += part.numel() * part.element_size()
        own, shared = sizes
        if not any(True for _ in _tensors("input", inputs, 0)) or shared > _KEPT_SHARED_BYTES or own > _KEPT_BYTES:
            return 0
        return 1 if shared else min(_KEPT_PASSES, _KEPT_BYTES // max(own, 1))

    def _of(self, step: int, now: int) -> Iterator[tuple[str, Any]]:
        beat = self._beat
        # What came in a fast step is taken up only now that it matters.
        if beat.batch is not None:
            batch, beat.batch = beat.batch, None
            if isinstance(batch, weakref.ref):
                self.fed.append((beat.batch_step, ("batch",), (batch,)))
            else:
                self.fed.append((beat.batch_step, "batch", batch))
        for fed_at, named, tensors in self.fed:
            if fed_at == step:
                for number, kept in enumerate(tensors):
                    name = f"{named}[{number}]" if isinstance(named, str) else named[number]
                    # What was only referred to may hold tensors itself.
                    yield from _tensors(name, kept() if isinstance(kept, weakref.ref) else kept, 1)
        for fed_at, inputs in beat.kept:
            if fed_at == step:
                yield from _named("input", inputs)
        if step == now:
            yield from _named("input", beat.inputs)

    def _bad(self, step: int, fed: Iterable[tuple[str, Any]], usual: set[str]) -> BadInputs | None:
        names: list[str] = []
        value = detail = ""
        for name, tensor in fed:
            if name in names or name in usual or not (tensor.is_cpu or tensor.is_cuda):
                continue
            with self.torch.no_grad():
                values = tensor.detach()
                bad = ~self.torch.isfinite(values)
                count = int(bad.sum())
                if not count or not self._counts(values, bad):
                    continue
            names.append(name)
            if not detail:
                value, detail = _worst(values[bad]), _detail(name, bad, count)
        return BadInputs(step, tuple(names), value, detail) if names else None

    def _counts(self, values: Any, bad: Any) -> bool:
        """NaN always does. Infinities are what masks are made of: they do where the other values differ from each
        other, in a program whose inputs are known."""
        if bool(values[bad].isnan().any()):
            return True
        others = values[~bad]
        return self._known and others.numel() > 0 and bool((others != others[0]).any())


def _worst(values: Any) -> str:
    if bool(values.isnan().any()):
        return "nan"
    return "inf" if float(values[0]) == math.inf else "-inf"


def _detail(name: str, bad: Any, count: int) -> str:
    text = f"{count} of {bad.numel()} values of {name}"
    if bad.dim() >= 2:
        rows = bad.reshape(bad.shape[0], -1).any(1).nonzero().reshape(-1).tolist()
        shown = ", ".join(map(str, rows[:4])) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
        text += f", in sample{'' if len(rows) == 1 else 's'} {shown} of {bad.shape[0]} in the batch"
    return text


def _named(label: str, fed: Any) -> list[tuple[str, Any]]:
    return list(_tensors(label, fed, 0))[:MOST_TENSORS]


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


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Everything that is in a collection; a collection too deep, or of a kind unknown here, is a part itself."""
    if depth <= _DEEPEST and isinstance(value, dict):
        for each in value.values():
            yield from _parts(each, depth + 1)
    elif depth <= _DEEPEST and isinstance(value, (list, tuple)):
        for each in value:
            yield from _parts(each, depth + 1)
    else:
        yield value
