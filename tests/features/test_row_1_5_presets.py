"""Presets debug and production, a file over a preset, and fewer steps, by the notes' options."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.train.settings import load_config, preset_names

ROW = "1.5"
COMMAND_LINE = "rankscope train --preset production --config FILE.json --max-steps 10"
DIFFERS = "`--config` lies over the production preset, so that a file of two lines is enough."


def test_debug_and_production_are_as_the_notes_have_them() -> None:
    debug, production = load_config("debug", None, []).config, load_config("production", None, []).config
    assert (debug.model.layers, debug.training.max_steps, debug.logging.debug) == (2, 10, True)
    assert (production.model.layers, production.training.max_steps) == (32, 10000)
    assert {"14b", "32b", "micro", "mtp-3b", "stable"} <= set(preset_names())


def test_a_file_lies_over_the_production_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "single_gpu.json"
    file.write_text('{"training": {"batch_size": 4, "grad_accum_nums": 8}} // fewer')
    assert main(["train", "--config", str(file), "--max-steps", "10", "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert '"layers": 32,' in shown
    assert '"batch_size": 4,' in shown
    assert '"max_steps": 10,' in shown
    assert "// preset production" in shown
    assert "// --max-steps" in shown
    assert main(["train", "--config", str(file), "--preset", "debug", "--show-config"]) == 0
    assert '"layers": 2,' in capsys.readouterr().out
