"""`rankscope attach` to a job with which nothing is wrong: it says so where ranks are seen to go on, blames nobody, and
the job ends as it would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import MARK, kill, marked
from rankscope.cli import main

PROGRAM = """\
import os, sys, time
import torch, torch.distributed as dist

folder = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
weights = torch.randn(64, 64)
total = steps = 0

def told(name):
    return os.path.exists(f"{folder}/{name}")

def say(name):
    open(f"{folder}/{name}{rank}", "w").close()

def train():
    global total, steps
    say("training")
    going = torch.ones(1)
    while going.item():
        value = torch.ones(1)
        (weights @ weights).sum().item()
        dist.all_reduce(value)
        total, steps = total + int(value.item()), steps + 1
        going.fill_(not told("idle now"))
        dist.broadcast(going, 0)

def idle():
    say("idling")
    while not told("evaluate now"):
        time.sleep(0.2)

def evaluate():
    say("evaluating")
    while not told("end now"):
        (weights @ weights).sum().item()

train()
idle()
if rank == 0:
    evaluate()
else:
    say("evaluating")
dist.barrier()
with open(f"{folder}/result{rank}", "w") as file:
    file.write(str(total == 2 * steps > 0))
dist.destroy_process_group()
"""
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone"),
    "rankscope": ("rankscope", "run", "--stall-after", "600"),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_healthy_job_is_not_blamed_in_any_phase_and_ends_as_it_would(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    job = subprocess.Popen(
        [sys.executable, "-m", *LAUNCHERS[launcher], "--nproc-per-node", "2", str(script), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, MARK: str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def wait_for(phase: str) -> None:
        until(lambda: all((tmp_path / f"{phase}{rank}").exists() for rank in range(2)), job)

    def look() -> dict[str, Any]:
        code = main(["attach", "--json", "--watch", "3", "--pid", str(job.pid)])
        verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == {"ok": 0, "unknown": 3}.get(verdict["outcome"], 1)
        return verdict

    try:
        wait_for("training")
        training = look()
        assert (training["outcome"], training["certainty"], training["culprits"]) == ("ok", "likely", [])
        assert "move" in training["headline"]
        assert len(training["because"]) == 2
        (tmp_path / "idle now").touch()
        wait_for("idling")
        idling = look()
        # A sample may find a rank between two sleeps: then it moves.
        assert idling["outcome"] in ("unknown", "ok"), idling["headline"]
        assert idling["culprits"] == []
        assert idling["next"] or idling["outcome"] == "ok"
        (tmp_path / "evaluate now").touch()
        wait_for("evaluating")
        evaluating = look()
        assert evaluating["outcome"] in ("ok", "slow", "unknown"), evaluating["headline"]
        assert all(culprit["rank"] == 0 for culprit in evaluating["culprits"])
        assert evaluating["cause"] in (None, "slow-rank")
        (tmp_path / "end now").touch()
        assert job.wait(200) == 0
        assert [(tmp_path / f"result{rank}").read_text() for rank in range(2)] == ["True", "True"]
    finally:
        for pid in marked(str(tmp_path)):  # torchrun's ranks lead sessions of their own
            kill(pid, signal.SIGKILL)
        job.wait()


def until(met: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not met():
        assert job.poll() is None, "the job ended early"
        assert time.monotonic() < deadline, "the job did not get there in time"
        time.sleep(0.05)
