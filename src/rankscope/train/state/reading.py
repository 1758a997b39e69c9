"""Tensors of a checkpoint, read by one process or by all ranks together, into memory that is already there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from rankscope.errors import RankscopeError


def read_tensors(folder: Path, wanted: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Fills the tensors, each rank its own part where they are sharded. Without a group, this process alone."""
    expect_one_process()
    try:
        load(dict(wanted), storage_reader=FileSystemReader(folder), process_group=group, no_dist=group is None)
    except (CheckpointException, OSError, RuntimeError) as error:
        raise RankscopeError(f"{folder} cannot be read: {reason(error)}") from error


def shape_of(folder: Path, name: str) -> tuple[int, ...]:
    """The shape of one tensor in a checkpoint."""
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata[name]
    assert isinstance(stored, TensorStorageMetadata)
    return tuple(stored.size)


def expect_one_process() -> None:
    """torch warns at each save and load of a process without a group; here it is meant. A filter, and not
    `catch_warnings`, which other threads would feel."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def reason(error: BaseException) -> str:
    """What went wrong, in one line: the first failure inside torch's collection of them."""
    if isinstance(error, CheckpointException):
        rank, (inner, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {reason(inner)}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
