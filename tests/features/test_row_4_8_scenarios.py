"""The notes' table of scenarios: all-gather timeout on all ranks, mixed precision, barrier; the advice fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main

ROW = "4.8"
COMMAND_LINE = "rankscope diagnose train.log"
WATCHDOG = (
    "[rank{rank}]:[E1119 14:18:25.2{rank}0000000 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType=_ALLGATHER_BASE, NumelIn=131072000, NumelOut=262144000, "
    "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
STARTED = "[Rank 0] Data moved to device, starting forward pass\n[Rank 1] Data moved to device, starting forward pass\n"


def diagnosed(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    (tmp_path / "train.log").write_text(text)
    code = main(["diagnose", "--json", str(tmp_path / "train.log")])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, content


def test_an_all_gather_that_timed_out_on_every_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = STARTED + WATCHDOG.format(rank=0, seq=3) + WATCHDOG.format(rank=1, seq=3)
    code, verdict = diagnosed(tmp_path, text, capsys)
    assert (code, verdict["outcome"], verdict["cause"]) == (1, "hang", "comm-error")
    assert verdict["culprits"] == []
    assert "every rank, entered _ALLGATHER_BASE 3" in verdict["headline"]
    fix = " ".join(verdict["fix"])
    for words in ("--comm-timeout 3600", "NCCL_TIMEOUT=3600", "mixed_precision=false", "use_orig_params=True"):
        assert words in fix, words
    assert "pytorch/pytorch#109173" in verdict["references"]


def test_a_rank_that_was_behind_is_still_the_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(WATCHDOG.format(rank=rank, seq=3 if rank == 1 else 4) for rank in (0, 1, 2))
    _, verdict = diagnosed(tmp_path, STARTED + text, capsys)
    assert verdict["cause"] != "comm-error", verdict["headline"]


def test_the_notes_own_short_form_of_the_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = diagnosed(tmp_path, STARTED + "[NCCL] Timeout in AllGather operation\n", capsys)
    assert (code, verdict["outcome"]) == (1, "hang")
    assert "--comm-timeout 3600" in " ".join(verdict["fix"])


@pytest.mark.parametrize(
    ("text", "phase", "advice"),
    [
        (
            "[Rank 0] Data moved to device, starting forward pass\n",
            "forward or backward pass",
            "without mixed precision",
        ),
        ("[Rank 0] Reaching barrier before training loop\n", "at a barrier", "a rank may not come to the barrier"),
    ],
    ids=["mixed precision", "barrier"],
)
def test_a_log_that_stops_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, phase: str, advice: str
) -> None:
    code, verdict = diagnosed(tmp_path, text, capsys)
    assert (code, verdict["outcome"]) == (3, "unknown")
    assert phase in verdict["headline"]
    assert advice in json.dumps(verdict["alternatives"])
