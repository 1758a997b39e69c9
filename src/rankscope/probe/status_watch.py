"""Environment, CUDA and process group of the program, told around its trainer and where its set-up fails."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from rankscope.probe.stages import StageBook

_before: dict[str, str] = {}
_LONGEST = 2000
_OF_A_SET_UP = ("MASTER_", "NCCL_", "CUDA_", "TORCH_", "GLOO_", "DDP_", "RANK", "LOCAL_RANK", "WORLD_SIZE")


def remember() -> None:
    """What it is as the program begins."""
    _before.clear()
    _before.update(os.environ)


def tell_changes(book: StageBook, frame: FrameType | None) -> None:
    """One mark with the variables and the group state that are not what they were; none where nothing changed."""
    parts, state = _changed()
    if _before.get("process group", "no process group") != state:
        parts.append(state)
    if parts:
        book.mark("Environment changed", "status", frame, note=", ".join(parts)[:_LONGEST], always=True)
    _keep(state)


def tell_status(book: StageBook, frame: FrameType | None, when: str) -> None:
    """One mark with all of it: variables that changed since they were told last, CUDA, process group."""
    parts, state = _changed()
    told = [_cuda(), state, *(parts or ["variables as before"])]
    book.mark(f"Status {when}", "status", frame, note=", ".join(told)[:_LONGEST], always=True)
    _keep(state)


def tell_variables(book: StageBook) -> None:
    """One mark with what a set-up that failed went by."""
    from rankscope.process_status import relevant

    chosen = relevant({name: value for name, value in os.environ.items() if name.startswith(_OF_A_SET_UP)})
    note = ", ".join(f"{name}={value}" for name, value in chosen.items())
    book.mark("Variables of the failed set-up", "status", None, note=note[:_LONGEST], always=True)


def _cuda() -> str:
    """Asks nothing that would initialise CUDA: a program that forks afterwards could no longer use it."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized"):
        return "torch is not imported"
    if getattr(torch.version, "cuda", None) is None:
        return "CUDA is not in this torch"
    if not cuda.is_initialized():
        return "CUDA is not initialised"
    number = cuda.current_device()
    return f"CUDA device {number} of {cuda.device_count()} ({cuda.get_device_name(number)})"


def _changed() -> tuple[list[str], str]:
    """Variables that are not what they were, and the state of the process group now."""
    from rankscope.process_status import NAMES, PREFIXES, group_status, relevant

    now = {name: value for name, value in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    changed = {name: value for name, value in now.items() if _before.get(name) != value}
    parts = [f"{name}={value}" for name, value in relevant(changed).items()]
    parts += [f"{name} unset" for name in _before if (name in NAMES or name.startswith(PREFIXES)) and name not in now]
    group = group_status()
    return parts, f"process group {group.backend}" if group.initialized else "no process group"


def _keep(state: str) -> None:
    for name in [name for name in _before if name not in os.environ]:
        del _before[name]
    _before.update(os.environ)
    _before["process group"] = state


def tell_status_after(book: StageBook, _result: Any) -> None:
    tell_status(book, None, "after the trainer was made")
