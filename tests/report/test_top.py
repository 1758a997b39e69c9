"""`rankscope top`, as a person sees it: in tmux, on a job with a slow rank that then hangs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope, wait_until
from in_tmux import TRAINS, row
from rankscope.cli import main


@pytest.mark.slow
def test_board_shows_the_slow_rank_and_then_who_waits_for_whom(
    rankscope: Rankscope, tmux: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    hang = rankscope.folder / "hang.now"
    job = rankscope.start("--on-hang", "report", rankscope.script(TRAINS), hang, nproc=4)
    wait_until((job.run_dir / "ranks.json").exists, 60.0)
    board = shlex.join([*COMMAND, "top", str(job.run_dir)])
    session = ("new-session", "-d", "-x", "120", "-y", "30")
    wait_until(lambda: b"First optimizer step done" in (job.run_dir / "stages.log").read_bytes(), 90.0)
    tmux(*session, f"{board}; echo left with $?; sleep 60")

    def seen() -> str:
        return tmux("capture-pane", "-p")

    assert wait_until(lambda: "WWWWWW" in row(seen(), 0) and "training" in row(seen(), 2), 40.0), seen()
    trains = seen()
    assert "train.py" in trains.splitlines()[0]
    assert "4 ranks · step " in trains.splitlines()[0]
    assert "steps/s" in trains
    assert "WWW" not in row(trains, 2), "the others wait for it, not it for them"
    hang.touch()
    assert wait_until(lambda: "backward at train.py:" in row(seen(), 0), 30.0), seen()
    stands = seen()
    heads = stands.splitlines()[2]
    assert all(row(stands, rank)[heads.index("waits for") :].split()[0] == "3" for rank in (0, 1, 2)), stands
    assert wait_until(lambda: "in no call for" in row(seen(), 3), 20.0), seen()
    tmux("send-keys", "q")
    assert wait_until(lambda: "left with 0" in seen(), 10.0), seen()
    assert main(["top", "--once", str(job.run_dir)]) == 0
    once = capsys.readouterr().out
    assert "waits for" in once
    assert "\x1b" not in once
    assert job.process.poll() is None, "it was only looked at"


def test_what_is_no_job_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(tmp_path)]) == 2
    assert "neither a process nor the folder of a run" in capsys.readouterr().err
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert main(["top", str(ended.pid)]) == 2
    assert "is no job that runs here" in capsys.readouterr().err
