"""A real Slurm on this machine: a job that works, one that hangs, one that is preempted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import wait_until
from one_slurm import ask, slurm

__all__ = ["slurm"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HANGS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    dist.barrier()
dist.all_reduce(torch.ones(1))
"""

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
pathlib.Path("training").touch()
if pathlib.Path("saved").exists():
    sys.exit(0)
while True:
    time.sleep(0.05)
"""


def submit(environment: dict[str, str], folder: Path, *words: str) -> str:
    """`rankscope launch slurm`; returns the job's number."""
    command = [sys.executable, "-m", "rankscope", "launch", "slurm", *words]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("job ")[1].split(";")[0]


def fields(environment: dict[str, str], job: str) -> dict[str, str]:
    shown = ask(environment, "scontrol", "show", "job", job)
    return dict(word.partition("=")[::2] for word in shown.split() if "=" in word)


def await_state(environment: dict[str, str], job: str, *states: str, limit_s: float = 180.0) -> dict[str, str]:
    wait_until(lambda: fields(environment, job).get("JobState") in states, limit_s)
    found = fields(environment, job)
    assert found.get("JobState") in states, found
    return found


def test_good_job_completes_and_a_hanging_one_fails_with_our_code(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import os\nprint('rank', os.environ['RANK'], 'is well', flush=True)\n")
    (tmp_path / "hangs.py").write_text(HANGS)
    good = submit(slurm, tmp_path, "--", "--nproc-per-node", "2", "good.py")
    done = await_state(slurm, good, "COMPLETED", "FAILED")
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), (tmp_path / f"slurm-{good}.out").read_text()
    assert "R1:rank 1 is well" in (tmp_path / f"slurm-{good}.out").read_text()
    stuck = submit(slurm, tmp_path, "--", "--nproc-per-node", "2", "--run-dir", "run", "hangs.py")
    failed = await_state(slurm, stuck, "COMPLETED", "FAILED")
    said = (tmp_path / f"slurm-{stuck}.out").read_text()
    assert (failed["JobState"], failed["ExitCode"]) == ("FAILED", "75:0"), said
    assert "HANG, proven" in said
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_bytes())
    assert (verdict["cause"], [culprit["where"]["line"] for culprit in verdict["culprits"]]) == (
        "collective-skipped",
        [7],
    )


def test_job_on_a_broken_host_goes_back_into_the_queue_without_that_host(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n")
    job = submit(slurm, tmp_path, "--", "broken.py")
    assert wait_until(lambda: fields(slurm, job).get("ExcNodeList", "(null)") != "(null)", 120.0), fields(slurm, job)
    found = await_state(slurm, job, "PENDING")
    said = (tmp_path / f"slurm-{job}.out").read_text()
    assert (found["JobState"], found["ExcNodeList"], found["Restarts"]) == ("PENDING", socket.gethostname(), "1"), said
    assert "CRASH" in ask(slurm, "scontrol", "show", "job", job).partition("Comment=rankscope: ")[2], said
    assert "goes back into the queue, without" in said
    ask(slurm, "scancel", job)


def test_preempted_job_saves_and_is_put_back_into_the_queue(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    (tmp_path / "urgent.py").write_text("print('done')\n")
    everything = f"cpus-per-task={os.cpu_count() or 1}"
    job = submit(slurm, tmp_path, "--partition", "low", "--sbatch", everything, "--", "saves.py")
    assert wait_until((tmp_path / "training").exists, 120.0)
    urgent = submit(slurm, tmp_path, "--partition", "high", "--sbatch", everything, "--", "urgent.py")
    assert wait_until((tmp_path / "saved").exists, 120.0), (tmp_path / f"slurm-{job}.out").read_text()
    assert await_state(slurm, urgent, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert wait_until(lambda: fields(slurm, job).get("Restarts") == "1", 120.0), fields(slurm, job)
