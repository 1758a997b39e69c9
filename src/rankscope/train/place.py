"""Where this rank computes: its device, its number, the ranks beside it, and how they share the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from rankscope.distributed.environment import read_place
from rankscope.distributed.setup import setup_distributed
from rankscope.errors import UsageError
from rankscope.process_status import gpu_number
from rankscope.train.config import RunConfig, SystemConfig, parameter_count

Spread = Literal["single", "ddp", "fsdp", "hsdp"]


@dataclass(frozen=True, slots=True)
class Place:
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    @property
    def name(self) -> str:
        """As lines of the log call it: `GPU 0`."""
        if self.device.type != "cuda":
            return f"CPU {self.local_rank}"
        return f"GPU {gpu_number(os.environ, self.local_rank, self.local_world_size)}"


def find_place(system: SystemConfig) -> Place:
    """From the launcher's variables; without them, the only rank there is."""
    told = read_place(os.environ, check_network=False)
    rank, local_rank, world_size = told.rank, told.local_rank, told.world_size
    neighbours = os.environ.get("LOCAL_WORLD_SIZE", "")
    local_world_size = int(neighbours) if neighbours.isdigit() else 1
    kind = system.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return Place(rank, local_rank, world_size, local_world_size, torch.device("cpu"))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = local_rank if system.device_id is None or world_size > 1 else system.device_id
    if index >= devices:
        raise UsageError(
            f"rank {rank} needs GPU {index}, and {devices} are visible: start fewer ranks, or set system.device=cpu"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return Place(rank, local_rank, world_size, local_world_size, device)


def choose_spread(config: RunConfig, place: Place, rows: int) -> tuple[Spread, str]:
    """How the ranks share the model, and why."""
    wanted = config.system.strategy
    if wanted == "single" and place.world_size > 1:
        raise UsageError(f"system.strategy=single is one process, and there are {place.world_size} ranks: use ddp")
    if wanted != "auto":
        return wanted, "asked for"
    if place.world_size == 1:
        return "single", "one rank"
    # Weights, gradients and two moments in fp32, as DDP keeps them on every device.
    needed = 16 * parameter_count(config.model, rows)
    if place.device.type == "cpu":
        return "ddp", "ranks on the CPU share one memory, and nothing is saved by sharding"
    memory = torch.cuda.get_device_properties(place.device).total_memory
    sizes = f"weights, gradients and moments take {needed / 2**30:.1f} GiB of a device's {memory / 2**30:.0f} GiB"
    return ("ddp", f"{sizes}, less than half") if needed < memory / 2 else ("fsdp", f"{sizes}, half or more")


def join_group(place: Place, spread: Spread, system: SystemConfig, *, verbose: bool = False) -> None:
    """Makes the default process group where the strategy needs one; `verbose` tells each step."""
    if spread == "single":
        return
    made = setup_distributed(timeout_s=system.timeout_s, verbose=verbose, device=place.device)
    if made.backend == "gloo" and place.device.type == "cuda" and spread in ("fsdp", "hsdp"):
        raise UsageError(
            f"system.strategy={spread} on GPUs needs NCCL, and the ranks agreed on Gloo: mend what is told above, or "
            "write system.strategy=ddp"
        )


def choose_dtype(config: RunConfig, place: Place) -> tuple[torch.dtype, str]:
    """What matrices are multiplied in, and why."""
    training = config.training
    if not training.use_amp:
        return torch.float32, "fp32, because training.use_amp is false"
    if training.precision != "auto":
        named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        return named[training.precision], f"{training.precision}, asked for"
    if place.device.type == "cpu":
        return torch.float32, "fp32, because this is a CPU"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "bf16, because this GPU has it"
    return torch.float16, "fp16 with a loss scale, because this GPU has no bf16"
