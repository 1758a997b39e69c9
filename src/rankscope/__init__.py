"""Rankscope: torchrun that tells you why.

Programs need none of this; what they may say of themselves is here. All of it does nothing where no launcher listens,
so that a script stays runnable under anything. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.distributed.setup import setup_distributed as setup_distributed
    from rankscope.marks import log_memory as log_memory
    from rankscope.marks import stage as stage
    from rankscope.marks import step as step
    from rankscope.process_status import status as status

__version__ = "0.1.0"

_HOMES = {
    "stage": "rankscope.marks",
    "step": "rankscope.marks",
    "log_memory": "rankscope.marks",
    "status": "rankscope.process_status",
    "setup_distributed": "rankscope.distributed.setup",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rankscope' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
