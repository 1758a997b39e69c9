"""Which GPUs a job gets: named by the user, or the freest, with the reason said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rankscope.errors import UsageError
from rankscope.evidence.gpu_state import GpuState, read_gpu_states

FREE_MEMORY_BYTES = 1 << 30
"""A GPU with less than this in use, and no process on it, is free: a driver and its display take some."""
FREE_UTILIZATION = 10
GRAVE_XIDS = frozenset({48, 74, 79, 94, 95, 119, 120, 140})
"""Memory, NVLink, off the bus, GSP. The log does not say whether the GPU was reset since: such a one comes last."""
WAIT_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """`--gpus` as the user wrote it."""

    indices: tuple[int, ...] | None
    """None: the freest."""
    count: int | None
    """None: all that are free."""


@dataclass(frozen=True, slots=True)
class GpuChoice:
    indices: tuple[int, ...]
    reasons: tuple[str, ...]
    """One line each, for the user."""
    enough: bool
    """All of them are free."""


def parse_wish(text: str) -> Wish:
    """`0,3`, `2`, `auto` or `auto:2`."""
    if text == "auto":
        return Wish(None, None)
    head, _, number = text.partition(":")
    if head == "auto":
        if not number.isdigit() or int(number) < 1:
            raise UsageError(f"--gpus {text}: write auto:2 for the two freest")
        return Wish(None, int(number))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--gpus {text}: write numbers (0,3), auto, or auto:2")
    indices = tuple(map(int, parts))
    if len(set(indices)) < len(indices):
        raise UsageError(f"--gpus {text} names a GPU twice")
    return Wish(indices, None)


def choose(states: Sequence[GpuState], wish: Wish, visible: frozenset[int] | None = None) -> GpuChoice:
    """The choice and why; raises UsageError for GPUs that do not exist or cannot be used."""
    if wish.indices is not None:
        return _named(states, wish.indices)
    offered = [state for state in states if visible is None or state.index in visible]
    fit = sorted((state for state in offered if unfit(state) is None), key=_fullness)
    if not fit:
        broken = "; ".join(f"GPU {state.index}: {unfit(state)}" for state in offered) or "no GPU is visible"
        raise UsageError(f"--gpus auto found no GPU that can be used ({broken})")
    free = [state for state in fit if busy(state) is None]
    wanted = wish.count if wish.count is not None else max(1, len(free))
    if wanted > len(fit):
        raise UsageError(f"--gpus auto:{wanted}: this machine has {len(fit)} GPUs that can be used")
    taken = fit[:wanted]
    reasons = [f"GPU {state.index} chosen: {_why(state)}" for state in taken]
    reasons += [f"GPU {state.index} left out: {unfit(state)}" for state in offered if unfit(state) is not None]
    return GpuChoice(
        indices=tuple(sorted(state.index for state in taken)),
        reasons=tuple(reasons),
        enough=len(free) >= wanted and bool(free),
    )


def _named(states: Sequence[GpuState], indices: tuple[int, ...]) -> GpuChoice:
    known = {state.index: state for state in states}
    for index in indices:
        if index not in known:
            raise UsageError(f"--gpus names GPU {index}, and this machine has {_numbers(known)}")
    notes = []
    for index in indices:
        problem = unfit(known[index]) or busy(known[index])
        if problem is not None:
            notes.append(f"GPU {index} was asked for, and it is not free: {problem}")
    return GpuChoice(indices, tuple(notes), not notes)


def unfit(state: GpuState) -> str | None:
    """Why a GPU should get no job at all."""
    if state.lost:
        return "it does not answer"
    if state.remap_failed:
        return "its memory is broken (row remapping failed)"
    if state.ecc_uncorrected:
        return f"{state.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
    return None


def busy(state: GpuState) -> str | None:
    """Why a GPU is not free."""
    parts = []
    if state.utilization_percent is not None and state.utilization_percent >= FREE_UTILIZATION:
        parts.append(f"{state.utilization_percent} % busy")
    if state.memory_used_bytes is not None and state.memory_used_bytes >= FREE_MEMORY_BYTES:
        parts.append(f"{state.memory_used_bytes / (1 << 30):.1f} GiB in use")
    if state.processes:
        pids = ", ".join(str(process.pid) for process in state.processes[:3])
        parts.append(f"used by {'process' if len(state.processes) == 1 else 'processes'} {pids}")
    return ", ".join(parts) or None


def grave_xid(state: GpuState) -> int | None:
    """The newest Xid of this GPU that points at the hardware."""
    return next((xid for xid in reversed(state.xids) if xid in GRAVE_XIDS), None)


def _fullness(state: GpuState) -> tuple[bool, bool, float, int, int]:
    total = state.memory_total_bytes or 1
    used = (state.memory_used_bytes or 0) / total
    return (
        busy(state) is not None,
        grave_xid(state) is not None,
        round(used, 2),
        state.utilization_percent or 0,
        state.index,
    )


def _why(state: GpuState) -> str:
    problem = busy(state)
    if grave_xid(state) is not None:
        problem = f"Xid {grave_xid(state)} stands in the kernel's log" + (f", {problem}" if problem else "")
    if problem is not None:
        return f"the freest of those left, though {problem}"
    parts = ["no process"]
    if state.memory_used_bytes is not None and state.memory_total_bytes:
        parts.append(f"{(state.memory_total_bytes - state.memory_used_bytes) / (1 << 30):.1f} GiB free")
    if state.utilization_percent is not None:
        parts.append(f"{state.utilization_percent} % busy")
    return ", ".join(parts)


def _numbers(known: Mapping[int, GpuState]) -> str:
    return f"GPUs {', '.join(map(str, sorted(known)))}" if known else "none"


def visible_indices(states: Sequence[GpuState], environment: Mapping[str, str]) -> frozenset[int] | None:
    """What an earlier CUDA_VISIBLE_DEVICES (of a scheduler, say) leaves to choose from."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    found = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.isdigit():
            found.add(int(part))
        found |= {state.index for state in states if state.uuid and state.uuid.startswith(part)}
    return frozenset(found)


def choose_gpus(
    text: str,
    *,
    wait: bool,
    say: Callable[[str], None],
    read: Callable[[], tuple[GpuState, ...] | str] = read_gpu_states,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[int, ...]:
    """Chooses, says why, and sets CUDA_VISIBLE_DEVICES for the ranks. With `wait`, until enough are free."""
    wish = parse_wish(text)
    told = False
    while True:
        states = read()
        if isinstance(states, str):
            raise UsageError(f"--gpus {text}: {states}; leave --gpus out to run on the CPU")
        choice = choose(states, wish, visible_indices(states, os.environ))
        if choice.enough or not wait:
            break
        if not told:
            say(f"waiting for free GPUs (--gpus {text} --wait): " + "; ".join(choice.reasons))
            told = True
        pause(WAIT_PERIOD_S)
    for reason in choice.reasons:
        say(reason)
    # NVML counts by PCI bus; CUDA does so only when told.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, choice.indices))
    say(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
    return choice.indices
