"""`rankscope top`, as a person sees it: in tmux, on a job with a slow rank that then hangs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope, wait_until
from rankscope.cli import main

TRAINS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(0.2 if rank == 2 else 0.05)
    if rank == 3 and os.path.exists(sys.argv[1]):
        time.sleep(1000)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def tmux() -> Iterator[Callable[..., str]]:
    if shutil.which("tmux") is None:
        pytest.skip("not installed: tmux")
    name = f"rankscope-{uuid.uuid4().hex[:8]}"

    def command(*words: str) -> str:
        done = subprocess.run(["tmux", "-L", name, *words], capture_output=True, text=True, timeout=20, check=False)
        return done.stdout

    yield command
    command("kill-server")


def row(picture: str, rank: int) -> str:
    return next((line for line in picture.splitlines() if line.startswith(f"{rank} ")), "")


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
    assert "backward" not in row(stands, 3)
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
