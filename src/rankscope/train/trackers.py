"""Weights & Biases and TensorBoard, on rank 0 only. Both are optional packages."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankscope.errors import UsageError
from rankscope.train.config import RunConfig
from rankscope.train.metrics import StepRecord, Tracker


def open_trackers(config: RunConfig, folder: Path) -> list[Tracker]:
    trackers: list[Tracker] = []
    if config.logging.tensorboard:
        trackers.append(_TensorBoard(folder))
    if config.logging.wandb:
        trackers.append(_WeightsAndBiases(config, folder))
    return trackers


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError:
            raise UsageError("logging.tensorboard needs a package: pip install tensorboard") from None
        self._writer = writer(log_dir=str(folder / "tensorboard"))

    def log(self, record: StepRecord) -> None:
        for name, value in _scalars(record).items():
            self._writer.add_scalar(f"train/{name}", value, record.step, walltime=record.time)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, config: RunConfig, folder: Path) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise UsageError("logging.wandb needs a package: pip install wandb") from None
        self._run = wandb.init(project=config.logging.wandb_project, config=asdict(config), dir=str(folder))

    def log(self, record: StepRecord) -> None:
        self._run.log(_scalars(record), step=record.step)

    def close(self) -> None:
        self._run.finish()


def _scalars(record: StepRecord) -> dict[str, float]:
    values = {name: value for name, value in asdict(record).items() if name not in ("step", "time", "finite")}
    return {name: float(value) for name, value in values.items() if value is not None}
