"""`rankscope attach`: jobs that somebody else started, found and looked at from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from rankscope.evidence.jobs import job_of_pids
from rankscope.evidence.told_ranks import rank_in_frames

PROGRAM = """\
import os, sys, time
import torch, torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def fetch():
    os.read(os.pipe()[0], 1)

def worker(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    batches = iter(DataLoader(list(range(64)), num_workers=1))
    next(batches)
    dist.all_reduce(torch.ones(1))
    open(f"{folder}/ready{rank}", "w").close()
    if rank == 1:
        fetch()
    dist.all_reduce(torch.ones(1))

if __name__ == "__main__":
    mp.spawn(worker, (sys.argv[1],), nprocs=2)
"""
FETCH_LINE = 7


@pytest.fixture
def hanging_job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks of torch's spawn; rank 1 reads from a pipe to which nobody writes. Each has a loader's worker."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    job = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
            assert job.poll() is None, "the program ended before it hung"
            assert time.monotonic() < deadline, "the program did not get to its hang"
            time.sleep(0.1)
        yield job
    finally:
        os.killpg(job.pid, 9)
        job.wait()


@pytest.mark.slow
def test_a_job_of_multiprocessing_is_found_below_its_parent_and_its_stuck_rank_named(
    hanging_job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of_pids([hanging_job.pid])
    assert len(job.ranks) == 2
    code = main(["attach", "--json", "--watch", "4", "--pid", str(hanging_job.pid)])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert hanging_job.poll() is None
    assert (code, verdict["outcome"]) == (1, "hang")
    (culprit,) = verdict["culprits"]
    assert (culprit["rank"], culprit["where"]["line"]) == (1, FETCH_LINE)
    assert verdict["victims"] == [0]
    assert verdict["certainty"] != "proven"


def test_the_argument_that_torchs_spawn_gives_tells_the_rank() -> None:
    def frame(name: str, file: str, **values: int) -> dict[str, Any]:
        variables = [{"name": key, "repr": str(value), "arg": True} for key, value in values.items()]
        return {"name": name, "filename": file, "locals": variables}

    spawned = [frame("work", "/me/train.py", gpu=7), frame("_wrap", "/x/torch/multiprocessing/spawn.py", i=3)]
    assert rank_in_frames(spawned) == 3
    assert rank_in_frames([frame("inner", "/me/train.py", rank=9), frame("work", "/me/train.py", rank=2)]) == 2
    assert rank_in_frames([frame("work", "/me/train.py", size=2)]) is None


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["sleep", "600"], id="no Python"),
        pytest.param([sys.executable, "-c", "import time; time.sleep(600)"], id="Python that sleeps"),
        pytest.param([sys.executable, "-c", "while True: sum(range(1000))"], id="Python at work"),
    ],
)
def test_of_a_process_that_is_no_rank_nothing_is_known(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    process = subprocess.Popen(command, env=environment)
    try:
        code = main(["attach", "--json", "--watch", "1", "--pid", str(process.pid)])
    finally:
        process.kill()
        process.wait()
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, verdict["outcome"], verdict["cause"], verdict["culprits"]) == (3, "unknown", None, [])
    assert f"process {process.pid}" in verdict["headline"]
    assert "--pid" in str(verdict["next"])


def test_where_no_job_runs_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankscope.report.attach.find_jobs", lambda: ())
    code = main(["attach", "--json"])
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, verdict["outcome"], verdict["world_size"]) == (3, "unknown", 0)
    assert verdict["next"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pid", "999999999"], "999999999"),
        (["--watch", "0"], "1 to 3600"),
        (["--pid", "x"], "no whole number"),
    ],
)
def test_mistakes_in_the_command_are_one_line_and_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
