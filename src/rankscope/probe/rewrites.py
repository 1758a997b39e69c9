"""What changes a model, or how it is trained, beside its optimizer: replicas differ where only some ranks do it.

Written down with the line, among the calls; nothing of it happens in an ordinary step.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rankscope.probe.calls import CallRecorder

LOADS = "load_state_dict"
LEARNING_RATE = "learning_rate"


def watch_loading(module: ModuleType, calls: CallRecorder) -> None:
    """`load_state_dict` of modules."""
    load = module.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.mark(LOADS, type(self).__name__)
        return load(self, *args, **kwargs)

    module.Module.load_state_dict = load_state_dict


def watch_learning_rate(module: ModuleType, calls: CallRecorder) -> None:
    """The one scheduler that follows what it is shown, and not the number of steps alone."""
    plateau = module.ReduceLROnPlateau
    step = plateau.step

    @functools.wraps(step)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _rates(self)
        result = step(self, *args, **kwargs)
        after = _rates(self)
        if before != after:
            calls.mark(LEARNING_RATE, f"{before} to {after}")
        return result

    plateau.step = watched


def _rates(scheduler: Any) -> str:
    """Of plain numbers alone: one that lies on a GPU is not waited for."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    rates = [group.get("lr") for group in groups[:4] if isinstance(group, dict)]
    return ", ".join(f"{rate:.4g}" for rate in rates if isinstance(rate, (int, float)))
