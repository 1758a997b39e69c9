"""Logs that stop without a word, as people send them: the last sign of life of each rank, and what it may be."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main

FIRST_BATCH = """\
2025-11-19 14:08:13,310 [INFO] [BASELINE:R0] Process group ready
2025-11-19 14:08:13,314 [INFO] [BASELINE:R1] Process group ready
2025-11-19 14:08:24,871 [INFO] [BASELINE:R1] 75,000 samples
2025-11-19 14:08:24,902 [INFO] [BASELINE:R0] 75,000 samples
2025-11-19 14:08:25,040 [INFO] [BASELINE:R1] --- Training to epoch 0.50 ---
2025-11-19 14:08:25,042 [INFO] [BASELINE:R0] --- Training to epoch 0.50 ---
"""
FORWARD = """\
[Rank 0] Reaching barrier before training loop
[Rank 1] Reaching barrier before training loop
[Rank 0] Barrier passed, entering training loop
[Rank 1] Barrier passed, entering training loop
--- Training to epoch 0.50 ---
[Rank 0] Starting first batch - moving data to device
[Rank 1] Starting first batch - moving data to device
[Rank 0] Data moved to device, starting forward pass
[Rank 1] Data moved to device, starting forward pass
"""
BARRIER = "[Rank 0] Reaching barrier before training loop\n"
SILENT_S = 12 * 60


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["diagnose", "--json", str(path)])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == {"ok": 0, "unknown": 3}.get(verdict["outcome"], 1)
    return verdict


def written(path: Path, text: str, ago_s: float) -> Path:
    path.write_text(text)
    os.utime(path, (time.time() - ago_s,) * 2)
    return path


@pytest.mark.parametrize(
    ("text", "ranks", "first"),
    [
        pytest.param(FIRST_BATCH, [0, 1], "collective-skipped", id="first batch"),
        pytest.param(FORWARD, [0, 1], "collective-skipped", id="forward"),
        pytest.param(BARRIER, [0], "collective-skipped", id="barrier"),
    ],
)
def test_ranks_that_fall_silent_are_told_with_their_last_line_and_what_it_may_be_in_order(
    text: str, ranks: list[int], first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = diagnosed(written(tmp_path / "train.log", text, SILENT_S), capsys)
    assert (verdict["outcome"], verdict["cause"], verdict["certainty"]) == ("unknown", None, "possible")
    assert verdict["culprits"] == []
    signs = {sign["rank"]: sign for sign in verdict["signs_of_life"]}
    assert sorted(signs) == ranks
    for rank, sign in signs.items():
        assert (
            sign["line"] == [line for line in text.splitlines() if f"R{rank}]" in line or f"Rank {rank}]" in line][-1]
        )
        assert sign["ago_s"] >= SILENT_S - 1
    causes = [other["cause"] for other in verdict["alternatives"]]
    assert causes[0] == first
    assert len(causes) == len(set(causes)) >= 3
    assert all(other["next"] and other["because"] for other in verdict["alternatives"])
    assert verdict["next"]


def test_a_loader_is_less_likely_once_the_batch_has_arrived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def place(text: str) -> int:
        verdict = diagnosed(written(tmp_path / "train.log", text, SILENT_S), capsys)
        return [other["cause"] for other in verdict["alternatives"]].index("dataloader-stuck")

    assert place(FIRST_BATCH) < place(FORWARD)


def test_the_terminal_shows_each_rank_each_cause_and_how_to_confirm_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(written(tmp_path / "train.log", FORWARD, SILENT_S))]) == 3
    told = " ".join(capsys.readouterr().out.split())
    assert "OK" not in told
    for words in ("UNKNOWN", "last line of rank 0", "last line of rank 1", "12 min", "slow-rank", "attach --watch 60"):
        assert words in told


def test_times_of_another_time_zone_do_not_make_the_silence_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = time.time() - SILENT_S
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end - 9 * 3600))
    log = written(tmp_path / "train.log", f"{at},042 [INFO] [BASELINE:R0] Starting first batch\n", end - time.time())
    os.utime(log, (end, end))
    (sign,) = diagnosed(log, capsys)["signs_of_life"]
    assert sign["ago_s"] == pytest.approx(SILENT_S, abs=5)


@pytest.mark.parametrize(
    "line",
    [
        "2025-11-19 14:08:25,042 [INFO] [BASELINE:R1] loading",
        "[14:08:25.042][+0.141s][R1/2][LR1][PID:11610] About to call wandb.init...",
        "R1:loading",
        "GPU1:INFO | [GPU 1] loading",
        "Nov 19, 23:08:25 [Rank 1] loading",
    ],
)
def test_a_tag_names_the_rank_of_a_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = diagnosed(written(tmp_path / "train.log", f"{line}\n", 0), capsys)
    assert [(sign["rank"], sign["line"]) for sign in verdict["signs_of_life"]] == [(1, line)]


def test_a_traceback_below_a_loggers_tag_belongs_to_its_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 61, in main\n    step()\n'
    text = (
        f"{FIRST_BATCH}2025-11-19 14:09:00,000 [ERROR] [BASELINE:R1] failed\n{stack}ValueError: label 17\n"
        f"2025-11-19 14:09:01,000 [INFO] [BASELINE:R0] waiting\n"
    )
    tagged = text.replace("failed\nTraceback", "failed: Traceback")
    verdict = diagnosed(written(tmp_path / "train.log", tagged, 0), capsys)
    assert (verdict["outcome"], [culprit["rank"] for culprit in verdict["culprits"]]) == ("crash", [1])
    assert verdict["culprits"][0]["where"]["line"] == 61


def test_in_the_file_of_one_rank_a_tag_further_in_is_not_taken_for_another_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = written(tmp_path / "rank_3.log", "2025-11-19 14:08:25 [INFO] [GPU 0] loading\n", 0)
    assert [sign["rank"] for sign in diagnosed(log, capsys)["signs_of_life"]] == [3]
