"""Looks at checkpoints before any rank is started, so that a mistake is one line and not a job that fails."""

from __future__ import annotations

from pathlib import Path

import torch

from rankscope.errors import UsageError
from rankscope.train.config import RunConfig, embedding_rows
from rankscope.train.model import Decoder
from rankscope.train.state import manifest as manifests
from rankscope.train.state.directory import make_directory, newest, room_for
from rankscope.train.state.manifest import Found, TensorForm


def check_checkpoints(config: RunConfig, tokenizer_size: int) -> None:
    """Refuses a checkpoint that is not there or is of another model, a directory that cannot be written, and a disk
    that cannot hold one."""
    here = _forms(config, embedding_rows(config.model, tokenizer_size))
    found = _to_resume(config)
    if found is not None and (reason := manifests.refusal(found, here)) is not None:
        raise UsageError(reason)
    if config.checkpoint.every or config.checkpoint.at_end:
        directory = Path(config.checkpoint.dir)
        make_directory(directory)
        room_for(directory, manifests.bytes_of_a_checkpoint(here))


def _to_resume(config: RunConfig) -> Found | None:
    resume = config.checkpoint.resume
    if resume == "no":
        return None
    if resume == "auto":
        return newest(Path(config.checkpoint.dir))[0]
    found = manifests.read(Path(resume)) if Path(resume).is_dir() else "there is no such folder"
    if isinstance(found, str):
        raise UsageError(f"checkpoint.resume: {resume} is not a complete checkpoint: {found}")
    return found


def _forms(config: RunConfig, rows: int) -> dict[str, TensorForm]:
    with torch.device("meta"):
        model = Decoder(config.model, rows, torch.float32, 1)
    return {name: TensorForm(tuple(value.shape), "float32") for name, value in model.named_parameters()}
