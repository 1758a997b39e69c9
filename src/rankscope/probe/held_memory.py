"""What the program still held on its GPU when an exception for want of its memory ended it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rankscope.probe.page import SEPARATOR, Page
from rankscope.whose_code import is_user_file

_MOST_KINDS = 5
_MOST_LINES = 5
_MOST_OBJECTS = 2_000_000
"""A program with more of them is not searched: it is about to end, and should."""


def note(page: Page, error: BaseException) -> None:
    """Writes it down where the exception, or one that led to it, is torch's own; nothing otherwise."""
    torch = sys.modules.get("torch")
    if torch is None or not _ran_out(error):
        return
    cuda: Any = torch.cuda
    tensors, in_python = _largest(torch)
    parts = [str(cuda.memory_allocated()), str(cuda.memory_reserved()), str(in_python), str(len(tensors))]
    for kind, count, size in tensors:
        parts += [kind, str(count), str(size)]
    for file, line, size in _lines(torch):
        parts += [file, str(line), str(size)]
    page.held(SEPARATOR.join(parts))


def _ran_out(error: BaseException | None) -> bool:
    for _ in range(8):
        if error is None:
            return False
        if type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _largest(torch: Any) -> tuple[list[tuple[str, int, int]], int]:
    """Kinds of tensors on a GPU, their number and bytes, and the bytes of all; each storage counts once."""
    objects = gc.get_objects()
    if len(objects) > _MOST_OBJECTS:
        return [], 0
    storages: set[int] = set()
    kinds: dict[str, list[int]] = {}
    for each in objects:
        if not issubclass(type(each), torch.Tensor):  # a proxy may pretend to be one when it is asked
            continue
        try:
            if not each.is_cuda:
                continue
            storage = each.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except Exception:  # noqa: BLE001  a tensor without memory of its own
            continue
        if address in storages:
            continue
        storages.add(address)
        found = kinds.setdefault(f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}", [0, 0])
        found[0] += 1
        found[1] += size
    ranked = sorted(kinds.items(), key=lambda item: -item[1][1])
    return [(kind, count, size) for kind, (count, size) in ranked[:_MOST_KINDS]], sum(
        size for _, size in kinds.values()
    )


def _lines(torch: Any) -> list[tuple[str, int, int]]:
    """The user's lines by the bytes that they allocated and that are still held, where the program lets torch keep a
    history of allocations (`torch.cuda.memory._record_memory_history`): it is not switched on for this."""
    enabled: Callable[[], bool] | None = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or not enabled():
        return []
    held: dict[tuple[str, int], int] = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block.get("state") != "active_allocated":
                continue
            place = _innermost(block.get("frames") or ())
            if place is not None:
                held[place] = held.get(place, 0) + int(block.get("requested_size") or block["size"])
    ranked = sorted(held.items(), key=lambda item: -item[1])
    return [(file, line, size) for (file, line), size in ranked[:_MOST_LINES]]


def _innermost(frames: Iterable[dict[str, Any]]) -> tuple[str, int] | None:
    return next(((f["filename"], f["line"]) for f in frames if is_user_file(f["filename"])), None)
