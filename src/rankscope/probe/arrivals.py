"""In which order the gradients of a model become ready: the last of a backward pass is nearest to the model's input."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

_MOST_PARAMETERS = 4096
"""Of larger models the order of their parameters has to do: one pass would be slowed down by the hooks."""


def accumulator_of(torch: Any, parameter: Any) -> Any:
    """The node that adds a parameter's gradient up; a reducer takes the gradient over only after it."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]


class Arrivals:
    """Watches one backward pass."""

    def __init__(self, torch: Any, parameters: Iterable[Any]) -> None:
        trained = [each for each in parameters if each.requires_grad and each.is_leaf]
        self._order: list[weakref.ref[Any]] = []
        self._nodes: list[Any] = []
        """Kept alive: nodes without anybody who holds them are made anew for each pass, without hooks."""
        self._handles: list[Any] = []
        for parameter in trained if len(trained) <= _MOST_PARAMETERS else ():
            node = accumulator_of(torch, parameter)
            self._nodes.append(node)
            self._handles.append(node.register_prehook(self._hook(weakref.ref(parameter), len(trained))))

    def _hook(self, parameter: weakref.ref[Any], most: int) -> Callable[[tuple[Any, ...]], None]:
        order = self._order

        def arrived(_gradients: tuple[Any, ...]) -> None:
            if len(order) < most:  # several passes may come before somebody asks
                order.append(parameter)

        return arrived

    def last_first(self) -> list[Any]:
        """The parameters whose gradients came, the last first; empty before a pass. Ends the watch where one came."""
        if not self._order:
            return []
        for handle in self._handles:
            handle.remove()
        self._handles, self._nodes = [], []
        found = dict.fromkeys(reversed(self._order))
        return [each for reference in found if (each := reference()) is not None]
