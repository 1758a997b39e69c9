"""Ends that the launcher itself brings about, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow
ZOO = Path(__file__).resolve().parents[2] / "zoo" / "cases"

# The second attempt makes no group: torch's store still holds the addresses of the first, and gloo may take those.
HANGS_ONCE = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.exit(0)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""


def test_hang_is_restarted_and_the_second_attempt_is_the_verdict(rankscope: Rankscope) -> None:
    ended = rankscope.run("--on-hang", "restart", "--max-restarts", "1", rankscope.script(HANGS_ONCE))
    assert (ended.code, ended.verdict["outcome"]) == (0, "ok"), ended.err.decode()
    assert any(note.startswith("attempt 0 had ended: rank 1") for note in ended.verdict["notes"])
    assert b"restarting the job (--on-hang restart)" in ended.err
    assert (ended.run_dir / "evidence/attempt_0").is_dir()


def test_hang_without_restarts_left_ends_with_75(rankscope: Rankscope) -> None:
    ended = rankscope.run("--on-hang", "restart", rankscope.script(HANGS_ONCE))
    assert (ended.code, ended.verdict["outcome"]) == (75, "hang")
    assert b"stopping the job (--on-hang restart)" in ended.err


def test_corrupt_numbers_stop_the_run_with_76_when_asked(rankscope: Rankscope) -> None:
    script = rankscope.script((ZOO / "spike_guard" / "train.py").read_text(encoding="utf-8"))
    ended = rankscope.run("--on-corrupt", "stop", script, "--steps", "1000000", nproc=3, timeout_s=120.0)
    verdict = ended.verdict
    assert (ended.code, verdict["outcome"], verdict["cause"]) == (76, "corrupt", "parameters-diverged")
    assert b"stopping the job (--on-corrupt stop)" in ended.err
    assert (ended.run_dir / verdict["evidence"]).is_dir()
