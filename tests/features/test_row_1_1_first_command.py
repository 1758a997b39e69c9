"""The README's first command trains on all GPUs, or on two CPU ranks where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankscope.train.command import count_ranks
from rankscope.train.config import RunConfig

ROW = "1.1"
COMMAND_LINE = "bash run_training.sh"
DIFFERS = (
    "`bash run_training.sh` sets `.venv` up first where there is none, and the machine without a GPU "
    "trains on two CPU ranks."
)
ROOT = Path(__file__).resolve().parents[2]


def test_the_script_prepares_and_trains_and_hands_the_exit_code_on() -> None:
    text = (ROOT / "run_training.sh").read_text()
    assert '"$root/.venv/bin/rankscope" prepare' in text
    assert 'exec "$root/.venv/bin/rankscope" train' in text
    assert "bash run_training.sh --debug" in (ROOT / "README.md").read_text()


def test_all_gpus_or_two_ranks_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUM_GPUS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert count_ranks(RunConfig(), None)[0] == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert count_ranks(RunConfig(), None) == (6, "one for each of 6 GPUs", True)
