"""Copies of tensors on the host, taken without stopping the training: it goes on while they are written to disk."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Stage:
    """Host memory for one checkpoint, kept from one to the next. GPU tensors get pinned memory, so that the copy is
    queued behind the work already given to the GPU, and the next steps behind the copy: nobody waits on the host."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        """What the first `take` would else do while the training waits: pinning takes half a second a gigabyte."""
        for name, tensor in tensors.items():
            self._room_for(name, tensor)

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies as of now. They may be read after `wait`, and until the next `take`."""
        staged: dict[str, Tensor] = {}
        on_gpu = False
        for name, tensor in tensors.items():
            buffer = self._room_for(name, tensor)
            _local(buffer).copy_(_local(tensor), non_blocking=tensor.is_cuda)
            on_gpu = on_gpu or tensor.is_cuda
            staged[name] = buffer
        if on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        return staged

    def _room_for(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, requires_grad=False)
            self._buffers[name] = buffer
        return buffer

    def wait(self) -> None:
        """Returns when the copies are whole; to be called where waiting hurts nobody."""
        if self._copied is not None:
            self._copied.synchronize()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
