"""Causes ranked by likelihood, each with the way to confirm it: those of the notes for its own log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_row_4_1_silent_log import RANKS, SUMMARY

from rankscope.cli import main

ROW = "4.2"
COMMAND_LINE = "rankscope diagnose --json train.log"
DIFFERS = "Likelihood is in three words (proven, likely, possible), not in stars or per cent: nobody has counted them."


@pytest.mark.parametrize("text", [SUMMARY, RANKS], ids=["of no rank", "of each rank"])
def test_gathering_first_then_its_communication_then_the_loader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    main(["diagnose", "--json", str(log)])
    verdict = json.loads(capsys.readouterr().out)
    causes = [each["cause"] for each in verdict["alternatives"]]
    assert causes[:3] == ["collective-skipped", "comm-error", "dataloader-stuck"], causes
    told = [json.dumps(each) for each in verdict["alternatives"]]
    assert "FSDP's gathering of parameters" in told[0]
    assert "mixed precision" in told[1]
    assert "num_workers=0" in told[2]
    assert {"pytorch/pytorch#109173", "pytorch/pytorch#95118"} <= set(verdict["references"])
