"""Game day: failures planted on purpose, so that anybody can see what the verdict on their own cluster looks like."""

from __future__ import annotations

import socket
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankscope.train.fault_plan import FaultPlan
from rankscope.train.model import Decoder

SLOW_FOR_S = 60.0


class Fault:
    """Does nothing but on the planned rank and step."""

    def __init__(self, plan: FaultPlan | None, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._plan = plan if plan is not None and (plan.rank == rank or plan.kind == "skip") else None
        self._device = device
        self._now = False

    def plant(self, model: Decoder) -> None:
        """Prepares what has to sit in the model itself."""
        if self._plan is not None and self._plan.kind == "nan":
            middle = model.layers[len(model.layers) // 2]
            middle.register_forward_hook(self._spoil)

    def aim(self, step: int) -> None:
        """What sits in the model acts in the planned step only, also when that step is repeated to look into it."""
        self._now = self._plan is not None and self._plan.step == step

    def strike(self, step: int) -> None:
        """At the start of each step."""
        if self._plan is None or self._plan.step != step:
            return
        match self._plan.kind:
            case "hang":
                wait_for_silent_service()
            case "crash":
                raise RuntimeError(f"planted crash in step {step}")
            case "oom":
                exhaust_memory(self._device)
            case "slow":
                work_slowly()
            case "skip" if dist.is_initialized():
                meet_the_others(self._rank, absent_rank=self._plan.rank)

    def _spoil(self, _module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return output * float("nan") if self._now else output


def wait_for_silent_service() -> None:
    """Asks a service that takes the connection and never answers, as a metrics server in trouble does."""
    service = socket.create_server(("127.0.0.1", 0))
    with service, socket.create_connection(service.getsockname()) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        connection.recv(1024)


def exhaust_memory(device: torch.device) -> None:
    """Asks for more than there is, at once: the GPU's allocator or the host's refuses."""
    if device.type == "cuda":
        torch.empty(torch.cuda.get_device_properties(device).total_memory, dtype=torch.uint8, device=device)
    bytearray(1 << 62)


def meet_the_others(rank: int, *, absent_rank: int) -> None:
    """A barrier that one rank leaves out, as code under a condition on the rank does."""
    if rank == absent_rank:
        return
    dist.barrier()


def work_slowly() -> None:
    """Computes for a minute while the others wait; then all goes on."""
    until = time.monotonic() + SLOW_FOR_S
    matrix = torch.eye(256)
    while time.monotonic() < until:
        matrix = matrix @ matrix
