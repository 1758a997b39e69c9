"""The report of a step that is not finite, in the notes' form, and its files read by the notes' snippet."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from notes import nan_training

from conftest import Ended

__all__ = ["nan_training"]
ROW = "1.7"
COMMAND_LINE = "rankscope train --debug --fault nan@rank=1,step=3"
DIFFERS = (
    "On a CPU the heading says `[CPU 1]`. A loss that is not finite by itself has the heading `NaN LOSS DETECTED`."
)


@pytest.mark.slow
def test_report_checkpoint_and_tensors_are_those_of_the_notes(nan_training: Ended) -> None:
    np = pytest.importorskip("numpy")
    shown = (nan_training.out + nan_training.err).decode()
    assert nan_training.code == 76, shown
    assert re.search(r"NaN (?:LOSS|GRADIENT) DETECTED \[CPU 1\]", shown)
    for words in ("Step: 3", "Gradient Norm: nan", "PROBLEMATIC TENSORS:", "NaN count: "):
        assert words in shown, words
    assert "Total layers with NaN gradients:" in shown
    folder = nan_training.run_dir.parent / ".checkpoints"
    assert (folder / "nan_grad_step_3.pt").exists()
    with (folder / "debug" / "nan_debug_step_3.pkl").open("rb") as file:
        debug_data: dict[str, Any] = pickle.load(file)
    bad = [name for name, grad in debug_data["gradients"].items() if np.isnan(grad).any()]
    assert bad
    assert not any(np.isnan(value).any() for value in debug_data["parameters"].values())
