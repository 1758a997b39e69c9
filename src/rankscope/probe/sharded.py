"""Models whose gradients are scattered over the ranks as they are reduced (FSDP2): one of a rank's own is looked at
before that, of the part of the model whose gradients come last. Whatever goes wrong in a backward pass flows on to
there; afterwards every rank holds a part of everybody's sum, and nothing tells where it began."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rankscope.probe.finite import FiniteChecks


class ShardedGradients:
    """Stands in for torch's `foreach_reduce`, which takes the whole gradients of one part of the model."""

    def __init__(self, finite: FiniteChecks) -> None:
        self._finite = finite
        self._step = -1
        self._newest: object = None
        """The part that was reduced last, so far in this step."""
        self._last: object = None
        """The one that came last in the step before."""

    def watch(self, module: ModuleType) -> None:
        reduce = module.foreach_reduce

        @functools.wraps(reduce)
        def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
            if self._finite.looking and len(args) > 1:
                self._finite.guarded(self._see, args[0], args[1])
            return reduce(*args, **kwargs)

        module.foreach_reduce = foreach_reduce  # type: ignore[attr-defined]

    def _see(self, parts: Any, gradients: Any) -> None:
        finite = self._finite
        finite.scattered = True
        if not parts or not gradients:
            return
        if finite.step != self._step:
            self._step, self._last = finite.step, self._newest
        self._newest = key = id(parts[0])
        if key == self._last:
            near = gradients[: max(4, len(gradients) // 8)]
            finite.look_at_gradient(min(near, key=lambda each: each.numel()))
