"""A log read for the last sign of life of each rank, and how long it has been silent: the notes' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main

ROW = "4.1"
COMMAND_LINE = "rankscope diagnose train.log"
SUMMARY = """\
Nov 19, 23:08:13  NCCL 초기화 완료 (rank 0, 1)
Nov 19, 23:08:14  FSDP wrapping 완료
Nov 19, 23:08:14  Tokenizer 로드 완료
Nov 19, 23:08:15  Dataset 로드 시작 (rank 0, 1)
Nov 19, 23:08:24  Dataset 로드 완료: 75,000 samples per rank
Nov 19, 23:08:25  Training loop 진입: "--- Training to epoch 0.50 ---"
"""
RANKS = """\
2025-11-19 14:08:14,000 [INFO] [BASELINE:R0] FSDP wrapping done
2025-11-19 14:08:14,010 [INFO] [BASELINE:R1] FSDP wrapping done
2025-11-19 14:08:24,900 [INFO] [BASELINE:R0] Dataset loaded: 75,000 samples per rank
2025-11-19 14:08:24,901 [INFO] [BASELINE:R1] Dataset loaded: 75,000 samples per rank
2025-11-19 14:08:25,042 [INFO] [BASELINE:R0] --- Training to epoch 0.50 ---
"""


@pytest.mark.parametrize("text", [SUMMARY, RANKS], ids=["of no rank", "of each rank"])
def test_the_notes_own_log_falls_silent_at_the_first_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    assert main(["diagnose", str(log)]) == 3
    told = " ".join((capsys.readouterr().out).split())
    assert "silent at the first batch" in told
    assert "--- Training to epoch 0.50 ---" in told
    assert "before the log was read" in told
