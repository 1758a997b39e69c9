"""Two real ranks: ten and ten steps against twenty, and the same checkpoint in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_training import Training

from rankscope.train.config import CheckpointConfig
from rankscope.train.state.checkpointer import Checkpointer

PROGRAM = Path(__file__).with_name("resuming_ranks.py")


@pytest.mark.slow
def test_two_ranks_go_on_with_the_bits_they_saved_and_one_process_with_their_data_order(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(PROGRAM), str(tmp_path), "ddp", "fsdp"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        shown = [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for text in shown:
        for strategy in ("ddp", "fsdp"):
            assert f"{strategy}: bit-equal" in text, "\n".join(shown)
            assert f"{strategy}: {tmp_path}/{strategy}/step_00000010 is a checkpoint of another model:" in text

    for strategy in ("ddp", "fsdp"):
        said: list[str] = []
        alone = Training("single")
        checkpointer = Checkpointer(CheckpointConfig(dir=str(tmp_path / strategy), resume="auto"), say=said.append)
        assert checkpointer.load_latest(alone.model, alone.optimizer, alone.samples) == 10
        checkpointer.close()
        assert "it was saved by 2 ranks and this run has 1" in said[0]
        assert alone.samples.consumed == 40
        alone.steps(10)
        assert all(torch.isfinite(weight).all() for weight in alone.weights().values())
