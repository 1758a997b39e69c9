"""Models that DistributedDataParallel keeps equal on the ranks of a group: checksums tell when they no longer are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from rankscope.probe import parameters
from rankscope.probe.arrivals import Arrivals

CHECKSUM_EVERY = 32
"""Optimizer steps."""
_CHECKSUM_VALUES = 16_384


class Replica:
    """One such model, as this rank holds it."""

    def __init__(self, module: Any) -> None:
        ignored = set(getattr(module, "parameters_to_ignore", ()))
        self.module = weakref.ref(module)
        self.group: str = getattr(module.process_group, "group_name", "")
        self.shared = [
            (name, weakref.ref(each))
            for name, each in module.module.named_parameters()
            if each.requires_grad and name not in ignored and parameters.readable(parameters.plain(each))
        ]
        self.sentinel: weakref.ref[Any] | None = None
        """The parameter whose gradient is looked at before it is reduced."""
        self.hook: Any = None
        """What takes that look off again."""
        self.arrivals: Arrivals | None = None
        """Until a backward pass has told which gradient comes last."""
        self.dense = False
        """That gradient is a plain one on the CPU."""
        self.unsynced = False
        """The last backward pass before a checksum was not reduced."""


def checksums(torch: Any, replicas: Iterable[Replica], step: int) -> Iterator[tuple[str, str, Any]]:
    """Group, name and sum of one parameter a time, in turn: replicas that are no longer equal show within some
    rounds. The sum is a tensor, where the parameter is."""
    for number, replica in enumerate(replicas):
        module = replica.module()
        if module is None or not replica.shared or getattr(module, "_comm_hooks", None):
            continue
        if replica.unsynced or _of_uneven_ranks(module):
            replica.shared = []  # replicas differ by design: steps between reductions, or not equally many steps
            continue
        name, reference = replica.shared[step // CHECKSUM_EVERY % len(replica.shared)]
        parameter = reference()
        if parameter is None or not parameter.is_contiguous():
            continue
        with torch.no_grad():
            value = parameter.detach().reshape(-1)[:_CHECKSUM_VALUES].abs().sum(dtype=torch.float32)
        yield replica.group, name if number == 0 else f"{name} of model {number}", value


def _of_uneven_ranks(module: Any) -> bool:
    """Inside of torch's Join ranks make as many steps as they have batches: the same step is not the same moment."""
    return bool(getattr(getattr(module, "_join_config", None), "enable", False))
