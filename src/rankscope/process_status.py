"""`rankscope.status()`: environment, versions, GPUs and process group of this process, as a value; secrets masked."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from rankscope.mask import mask_environment

NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS", "DDP_BACKEND", "GPU_RANK"}
)
PREFIXES = ("MASTER_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "WANDB_", "SLURM_", "HF_")
_PACKAGES = ("torch", "lightning", "transformers", "accelerate", "wandb")


@dataclass(frozen=True, slots=True)
class GpuStatus:
    index: int
    name: str
    memory_total_bytes: int
    memory_free_bytes: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The default process group."""

    initialized: bool
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    variables: dict[str, str]
    """Those that a training job goes by; values of secrets are `***`."""
    versions: dict[str, str]
    """Python, packages, CUDA, NCCL and driver, as far as they are there."""
    cuda_available: bool | None
    """None where torch has not been imported: asking would import it."""
    gpus: tuple[GpuStatus, ...] = ()
    """Those that this process sees."""
    group: GroupStatus = field(default_factory=lambda: GroupStatus(False))


def status() -> Status:
    """What this process sees now. Imports nothing that the program has not imported itself."""
    torch: Any = sys.modules.get("torch")
    available = _cuda(torch)
    return Status(
        variables=relevant(os.environ),
        versions=_versions(torch, bool(available)),
        cuda_available=available,
        gpus=_gpus(torch) if available else (),
        group=group_status(),
    )


def relevant(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a training job goes by, sorted, masked."""
    chosen = {name: value for name, value in sorted(variables.items()) if name in NAMES or name.startswith(PREFIXES)}
    return mask_environment(chosen)


def gpu_number(variables: Mapping[str, str], local_rank: int, ranks: int) -> int:
    """The number that lines of a rank call its GPU: GPU_RANK of a job of one rank, as scripts set it beside
    CUDA_VISIBLE_DEVICES; else that of its local rank."""
    named = variables.get("GPU_RANK", "")
    return int(named) if ranks == 1 and named.isdigit() else local_rank


def _cuda(torch: Any) -> bool | None:
    cuda = getattr(torch, "cuda", None)
    return None if cuda is None or not hasattr(cuda, "is_available") else bool(cuda.is_available())


def _versions(torch: Any, available: bool) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if cuda:
        found["cuda"] = str(cuda)
    if available:
        nccl = sys.modules.get("torch.cuda.nccl")
        if nccl is not None and torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, nccl.version()))
        driver = _driver()
        if driver:
            found["driver"] = driver
    return found


def _driver() -> str | None:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None  # no driver, or one that does not tell
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _gpus(torch: Any) -> tuple[GpuStatus, ...]:
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index) if torch.cuda.is_initialized() else (0, 0)
        properties = torch.cuda.get_device_properties(index)
        found.append(GpuStatus(index, properties.name, int(total or properties.total_memory), int(free)))
    return tuple(found)


def group_status() -> GroupStatus:
    """Of the default process group, without a look at anything else."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return GroupStatus(False)
    return GroupStatus(True, str(dist.get_backend()), dist.get_rank(), dist.get_world_size())
