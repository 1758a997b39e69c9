"""What the command decides once and every rank reads: configuration, data, planted fault, folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankscope.train.config import RunConfig
from rankscope.train.fault_plan import FaultPlan


@dataclass(frozen=True, slots=True)
class RunPlan:
    config: RunConfig
    dataset: str | None
    """Folder of the prepared dataset; None for random tokens."""
    tokenizer_size: int
    """Tokens that may occur."""
    folder: str
    """The run's own folder."""
    device_word: str
    """`GPU` or `CPU`, for lines written before torch is there."""
    progress_bar: bool
    fault: FaultPlan | None = None


def write_plan(plan: RunPlan, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")


def read_plan(path: Path) -> RunPlan:
    return msgspec.json.decode(path.read_bytes(), type=RunPlan)
