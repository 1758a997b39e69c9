"""Somebody whose torchrun job hangs follows the start page, and has the culprit after two commands at most."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JOB = """\
import socket
import torch
import torch.distributed as dist


def push_metrics(service):
    service.recv(1)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
open(f"ready-{dist.get_rank()}", "w").close()
if dist.get_rank() == 1:
    ours, theirs = socket.socketpair()
    push_metrics(ours)
dist.all_reduce(torch.ones(1))
"""
LINE = JOB.splitlines().index("    service.recv(1)") + 1


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[int]:
    """The pid of plain torchrun, whose job hangs."""
    (tmp_path / "train.py").write_text(JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    with (tmp_path / "output").open("wb") as output:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            assert job.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield job.pid
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)


def commands_for_a_job_that_hangs() -> tuple[str, str]:
    """What the page says to type: the command of the section, and the one for a machine with several jobs."""
    page = (ROOT / "docs" / "start.md").read_text()
    section = page.partition("## My job hangs now\n")[2].partition("\n## ")[0]
    (first,) = re.findall(r"^```bash\n(.*)\n```$", section, re.MULTILINE)
    (row,) = [line for line in page.splitlines() if line.startswith("| my job hangs now ")]
    (second,) = [command for command in re.findall(r"`([^`]+)`", row) if "--pid" in command]
    return first, second


@pytest.mark.slow
def test_two_commands_of_the_page_lead_to_the_culprit_of_a_hanging_torchrun_job(torchrun: int, tmp_path: Path) -> None:
    first, second = commands_for_a_job_that_hangs()
    for command in (first, re.sub(r"--pid \d+", f"--pid {torchrun}", second)):
        program, *arguments = command.split()
        assert program == "rankscope"
        ended = subprocess.run(
            [sys.executable, "-m", "rankscope", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        said = ended.stdout + ended.stderr
        if ended.returncode != 2:
            break
        assert "--pid" in said, "where several jobs run, it says how to choose one"
    assert ended.returncode == 1, said
    (culprit,) = [line for line in said.splitlines() if line.strip().startswith("culprit ")]
    assert "rank 1 " in culprit
    assert f"train.py:{LINE}  push_metrics" in culprit
    os.kill(torchrun, 0)  # it was looked at, and is still there
