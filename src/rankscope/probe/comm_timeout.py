"""The timeout of process groups that the program gives none: torch's default, raised or lowered for this job."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from rankscope.probe.imports import ImportWatch

VARIABLE = "RANKSCOPE_COMM_TIMEOUT"
_DEFAULTS = ("default_pg_timeout", "default_pg_nccl_timeout")


def watch(imports: ImportWatch) -> None:
    """Once torch.distributed is imported; nothing where the launcher was not asked to."""
    seconds = os.environ.get(VARIABLE, "")
    if seconds.isdigit():
        imports.when_imported("torch.distributed.distributed_c10d", lambda module: _change(module, int(seconds)))


def _change(module: ModuleType, seconds: int) -> None:
    from datetime import timedelta

    for name in _DEFAULTS:
        if isinstance(getattr(module, name, None), timedelta):
            setattr(module, name, timedelta(seconds=seconds))


def told(timeout: Any) -> str:
    """What to say of a group's timeout: the program's own, else what was asked for; nothing where both are silent."""
    if hasattr(timeout, "total_seconds"):
        return f"timeout={timeout.total_seconds():g} s"
    seconds = os.environ.get(VARIABLE, "")
    return f"timeout={seconds} s" if seconds.isdigit() else ""
